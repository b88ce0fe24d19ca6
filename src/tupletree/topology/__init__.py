"""The topology layer: streams, components, bolts by decorator, the builder, its checks, and drawings.

Pure descriptions: nothing here runs a component. Import from the modules; users import from `tupletree`.
"""
