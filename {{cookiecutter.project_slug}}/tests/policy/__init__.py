"""Tests of the ack policy: the file, the checks, publishing, markers, logs, and real processes."""
