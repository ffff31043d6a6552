"""The parts of `test_state_machine`: asking both stores, cutting calls short, setting clocks."""
