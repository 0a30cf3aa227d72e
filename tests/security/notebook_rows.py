"""The tests that prove what is promised of a notebook whose agent was taken over: a part of row
S6.
"""

_FOLDER = "tests/sdk/sessions"

TAKEN_OVER_AGENTS = (
    f"{_FOLDER}/test_hostile_agent.py::test_the_link_outlives_an_agent",
    f"{_FOLDER}/test_controller_failures.py::test_a_value_that_was_promised_and_does_not_come_ends_the_step_by_name",
    f"{_FOLDER}/test_controller_failures.py::test_a_value_that_stops_half_way_or_that_nobody_wants_is_no_progress",
    f"{_FOLDER}/test_controller_failures.py::test_a_large_value_on_a_slow_link_has_all_the_time_it_needs",
    f"{_FOLDER}/test_expected_values.py::test_no_device_makes_the_notebook_hold_more_than_it_asked_for",
    f"{_FOLDER}/test_expected_values.py::test_no_device_makes_the_notebook_hold_more_for_long",
    f"{_FOLDER}/test_expected_values.py::test_what_nobody_can_have_asked_for_ends_the_session_of_that_device_alone",
    f"{_FOLDER}/test_expected_values.py::test_of_what_comes_too_late_only_so_much_is_answered",
    f"{_FOLDER}/test_link_rounds.py::test_one_socket_takes_no_more_of_a_round_than_its_share",
    f"{_FOLDER}/test_link_rounds.py::test_no_more_of_a_timeline_is_read_than_there_was_to_do",
    f"{_FOLDER}/test_link_rounds.py::test_events_that_follow_from_one_another_are_handled_one_after_the_other",
    f"{_FOLDER}/test_link_rounds.py::test_of_a_message_without_an_end_only_the_beginning_is_read_and_that_is_no_message",
    f"{_FOLDER}/test_link_rounds.py::test_a_device_of_whom_too_much_is_unread_is_disconnected",
    f"{_FOLDER}/test_socket_memory.py::test_a_message_that_is_not_whole_is_counted",
    f"{_FOLDER}/test_peer_texts.py::test_no_character_is_left_that_cannot_be_seen",
    f"{_FOLDER}/test_peer_texts.py::test_no_text_of_a_message_is_shown_as_it_came",
    f"{_FOLDER}/test_peer_texts.py::test_what_a_device_says_of_itself_is_harmless_everywhere",
)
