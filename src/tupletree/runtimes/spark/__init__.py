"""The Spark runtime: epochs as transactions, each of them one job."""
