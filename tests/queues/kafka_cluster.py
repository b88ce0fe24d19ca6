"""A process that is librdkafka's mock cluster of one broker, until its standard input ends.

It prints its address, and obeys lines: `topic NAME PARTITIONS`, `down`, `up`, `error REQUEST CODE COUNT` (the next
requests of this kind are answered so), `slow REQUEST MS COUNT` (or so late), `delete TOPIC PARTITION OFFSET` (what is
before it is gone). Each is answered with a number, 0 if it was done. confluent-kafka has no word for these, so the
library is called directly.
"""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

import confluent_kafka

POINTER, TEXT, NUMBER = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int
FUNCTIONS = {
    "conf_new": (POINTER, ()),
    "conf_set": (NUMBER, (POINTER, TEXT, TEXT, TEXT, ctypes.c_size_t)),
    "new": (POINTER, (NUMBER, POINTER, TEXT, ctypes.c_size_t)),
    "mock_cluster_new": (POINTER, (POINTER, NUMBER)),
    "mock_cluster_bootstraps": (TEXT, (POINTER,)),
    "mock_group_initial_rebalance_delay_ms": (None, (POINTER, ctypes.c_int32)),
    "mock_topic_create": (NUMBER, (POINTER, TEXT, NUMBER, NUMBER)),
    "mock_broker_set_down": (NUMBER, (POINTER, ctypes.c_int32)),
    "mock_broker_set_up": (NUMBER, (POINTER, ctypes.c_int32)),
    "mock_push_request_errors_array": (None, (POINTER, ctypes.c_int16, ctypes.c_size_t, POINTER)),
    "mock_broker_push_request_error_rtts": (NUMBER, (POINTER, ctypes.c_int32, ctypes.c_int16, ctypes.c_size_t)),
    "mock_partition_delete_records": (NUMBER, (POINTER, TEXT, ctypes.c_int32, ctypes.c_int64)),
}


def library() -> ctypes.CDLL:
    [found] = (Path(confluent_kafka.__file__).parents[1] / "confluent_kafka.libs").glob("librdkafka*")
    loaded = ctypes.CDLL(str(found))
    for name, (result, arguments) in FUNCTIONS.items():
        function = getattr(loaded, f"rd_kafka_{name}")
        function.restype, function.argtypes = result, arguments
    return loaded


def main() -> None:
    kafka = library()
    settings, error = kafka.rd_kafka_conf_new(), ctypes.create_string_buffer(500)
    kafka.rd_kafka_conf_set(settings, b"log_level", b"0", error, 500)
    client = kafka.rd_kafka_new(0, settings, error, 500)
    cluster = kafka.rd_kafka_mock_cluster_new(client, 1)
    kafka.rd_kafka_mock_group_initial_rebalance_delay_ms(cluster, 0)
    print(kafka.rd_kafka_mock_cluster_bootstraps(cluster).decode(), flush=True)
    for line in sys.stdin:
        match line.split():
            case ["topic", name, partitions]:
                done = kafka.rd_kafka_mock_topic_create(cluster, name.encode(), int(partitions), 1)
            case ["down"]:
                done = kafka.rd_kafka_mock_broker_set_down(cluster, 1)
            case ["up"]:
                done = kafka.rd_kafka_mock_broker_set_up(cluster, 1)
            case ["error", request, code, count]:
                codes = (NUMBER * int(count))(*[int(code)] * int(count))
                kafka.rd_kafka_mock_push_request_errors_array(cluster, int(request), int(count), codes)
                done = 0
            case ["slow", request, late_ms, count]:
                pairs = (NUMBER(0), NUMBER(int(late_ms))) * int(count)
                done = kafka.rd_kafka_mock_broker_push_request_error_rtts(cluster, 1, int(request), int(count), *pairs)
            case ["delete", name, partition, offset]:
                done = kafka.rd_kafka_mock_partition_delete_records(cluster, name.encode(), int(partition), int(offset))
            case _:
                done = f"no command: {line!r}"
        print(done, flush=True)


if __name__ == "__main__":
    main()
