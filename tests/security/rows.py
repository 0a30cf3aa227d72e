"""The rows of SECURITY.md: what is promised against each fault or attack, and the tests that prove
it, by name.

A row says what is promised today. `gap` says plainly what is not.
"""

from tests.security.known_attacks import ATTACKS
from tests.security.notebook_rows import TAKEN_OVER_AGENTS
from tests.security.row import Row, tests_of

_INJECTIONS = tests_of(
    "sdk/run/test_faults:test_killed_while_a_plan_is_deployed "
    "test_killed_in_training_and_its_switch test_killed_while_requests_are_answered"
)
_CHAOS = tests_of("security/test_resume:test_f14_chaos_changes_nothing_that_is_learned")

_RECOVERY = tests_of(
    "sdk/run/test_recovery:test_whatever_is_lost_whenever_it_learns_what_one_machine_learns "
    "test_a_loss_in_the_middle_of_a_switch_changes_nothing_that_is_learned",
    "sdk/run/test_loss_between_calls:test_whatever_comes_after_a_loss_goes_on_as_if_it_had_stayed "
    "test_steps_from_before_a_switch_are_not_cut_anew_when_a_device_is_lost_after_it",
    "sdk/run/test_requests_survive:"
    "test_whoever_is_lost_at_any_message_all_is_answered_in_order "
    "test_a_loss_in_the_middle_of_a_switch_loses_no_request",
)

ROWS: dict[str, Row] = {
    "F1": Row(
        "an agent is killed, at any moment of a run",
        "training goes on without it, from a snapshot on the notebook, and equals one machine; "
        "every request is answered once, by what is left; without protection the run ends and names the device, and from its saved file it equals "
        "the undisturbed one to the bit; no step is lost or applied twice",
        _INJECTIONS
        + _CHAOS
        + _RECOVERY
        + tests_of("sdk/run/test_failures:test_a_killed_agent_is_named_and_the_others_go_on"),
    ),
    "F2": Row(
        "the notebook's kernel is killed",
        "agents drop what it had and wait for the next notebook; a saved run goes on as if "
        "uninterrupted; one that was detached goes on without it, also where its coordinator is "
        "killed",
        tests_of(
            "sdk/run/test_faults:test_killing_the_notebook_leaves_nothing",
            "agent/core/test_core_sessions:test_a_notebook_that_is_gone_leaves_nothing_behind",
            "sdk/run/test_training:test_a_saved_run_goes_on_as_if_uninterrupted",
            "sdk/coordinator/test_detach:test_the_notebook_ends_the_coordinator_is_killed_and_nothing_is_lost",
        ),
        "of a run that was not detached, steps after the last saved file are lost",
    ),
    "F3": Row(
        "a worker dies (signal, memory, abort)",
        "its agent lives and starts another, and the run goes on there; without protection the "
        "run ends with device and cause, and from its file it goes on equal",
        _CHAOS
        + _RECOVERY
        + tests_of(
            "sdk/run/test_failures:test_a_killed_worker_is_named_and_its_agent_lives",
            "agent/test_agent_process:test_failures_in_the_worker_are_named_and_the_agent_lives",
            "agent/worker/test_sandbox:test_a_worker_that_dies_says_how "
            "test_a_worker_killed_while_the_system_ran_out_of_memory_is_out_of_memory",
            "agent/core/test_core_worker:test_a_crash_ends_the_execution_with_its_cause_and_the_agent_lives",
        ),
    ),
    "F4": Row(
        "a device stands still and wakes up again",
        "its silence is noticed; what it says of an older epoch is refused",
        tests_of(
            "sdk/run/test_failures:test_a_stopped_agent_is_noticed_by_its_silence",
            "sdk/sessions/test_controller:test_silence_is_noticed "
            "test_our_own_standstill_is_not_taken_for_silence",
            "agent/core/test_core_sessions:test_commit_drops_older_epochs_and_refuses_them_from_then_on",
        ),
    ),
    "F5": Row(
        "a worker hangs",
        "it is killed and named; its agent answers meanwhile",
        tests_of(
            "agent/test_agent_process:test_a_worker_that_hangs_is_killed_and_named",
            "agent/core/test_core_worker:test_a_hung_worker_is_killed_after_the_time_it_may_be_silent",
            "sdk/sessions/test_controller:test_a_busy_worker_without_progress_hangs",
        ),
    ),
    "F6": Row(
        "a silent partition",
        "others are asked before a silent device is given up; who is cut off is named, also where "
        "only one direction is; a training goes on and learns what one machine learns; values that "
        "were on their way arrive once and whole when the link is back",
        tests_of(
            "agent/core/test_core_links:test_every_value_arrives_once_and_whole_however_often_a_link_breaks",
            "agent/core/test_core_transfers:test_a_member_that_stays_away_ends_what_waits_for_it",
            "sdk/sessions/test_controller_failures:test_a_lost_neighbour_that_still_talks_to_us_is_told_after_a_while",
            "sdk/lab/test_relay:test_a_device_that_is_away_does_not_answer_and_does_when_it_is_back",
            "sdk/run/test_partitions:test_devices_that_do_not_reach_each_other_cost_one_of_them "
            "test_a_device_that_only_the_notebook_does_not_reach_is_waited_for_a_while "
            "test_a_device_that_the_notebook_never_reaches_again_is_gone",
        ),
        "a run goes on without who is cut off; it waits for the link to heal only where nobody is "
        "left",
    ),
    "F7": Row(
        "links lose packets",
        "the result equals one machine's; only time is lost",
        tests_of(
            "sdk/lab/test_relay:test_a_step_over_a_relay_that_loses_packets_equals_one_machine"
        ),
    ),
    "F8": Row(
        "a link becomes slower during a run",
        "nobody is taken for dead; training and requests stay right over slow links",
        tests_of(
            "sdk/run/test_switching:test_every_request_during_switches_over_slow_links_is_answered_once",
            "sdk/lab/test_lab:test_links_change_as_the_script_says",
            "agent/core/test_chunk_sizes:test_a_link_gets_the_largest_chunk_that_it_carries_in_time",
        ),
        "another plan is chosen only where the home was profiled",
    ),
    "F9": Row(
        "plans are switched under load, and something dies meanwhile",
        "training equals one machine to the bit; a switch that fails leaves the old plan at work; "
        "each request is answered once",
        _INJECTIONS[1:]
        + tests_of(
            "sdk/run/test_switching:test_training_goes_on_during_a_switch_and_equals_one_machine_to_the_bit "
            "test_a_switch_that_is_cancelled_in_any_phase_leaves_one_plan_at_work "
            "test_a_newcomer_that_dies_on_the_way_is_named_and_training_goes_on"
        ),
    ),
    "F10": Row(
        "clocks of the wall jump",
        "nothing that decides reads one",
        tests_of(
            "security/test_clock:test_f10_no_wall_clock_is_read_anywhere "
            "test_f10_a_core_that_is_told_of_years_goes_on",
            "wire/test_process_identity:"
            "test_a_clock_that_is_set_changes_nothing_and_a_start_of_the_system_does",
            "sdk/coordinator/test_job_files:"
            "test_a_clock_that_is_set_back_does_not_make_an_older_job_the_latest",
        ),
    ),
    "F11": Row(
        "a disk is full, a file is cut anywhere",
        "the last good file stays whole and loads; the error names the file",
        tests_of(
            "security/test_resume:test_f11_a_file_cut_at_any_place_or_a_full_disk_leaves_the_last_good_one",
            "sdk/run/test_spoiled_run_files:test_no_tensor_of_a_file_may_be_another_than_the_runs",
            "sdk/discover/test_keyring:test_a_corrupt_file_is_an_error_and_stays",
            "agent/test_keys:test_a_corrupt_key_file_is_an_error_and_stays_as_it_is",
        ),
    ),
    "F12": Row(
        "duplicates, another order, older epochs, unknown runs",
        "each value and each step is applied once, or refused by name",
        tests_of(
            "wire/test_session:test_refuses_and_nothing_changes test_repeats_are_no_error "
            "test_what_was_on_its_way_when_the_other_side_dropped_or_reconnected_is_no_error",
            "agent/core/test_core_work:test_a_value_in_two_transfers_at_once_is_applied_once "
            "test_values_may_come_before_their_execution test_rejects_values_that_do_not_belong "
            "test_refuses_chunks_out_of_order_or_of_the_wrong_size",
            "agent/core/test_core_sessions:test_dropping_twice_is_fine",
            "agent/core/test_core_fuzz:test_nothing_that_is_said_breaks_the_core",
        ),
    ),
    "F13": Row(
        "a device leaves and comes back elsewhere",
        "it is known by its key, whatever its address; another key at its address is not talked to",
        tests_of(
            "sdk/lab/test_relay:test_a_device_that_came_back_as_another_process_is_known",
            "sdk/discover/test_moved_devices:test_two_that_changed_places_are_both_known "
            "test_one_that_was_paired_again_under_another_key_is_known_by_that "
            "test_whoever_has_no_key_of_a_paired_device_is_not_talked_to",
            "agent/test_agent_life:test_the_key_stays_the_same_over_a_restart "
            "test_a_device_that_changed_its_identity_is_not_talked_to",
            "sdk/lab/test_lab:test_a_crash_ends_the_run_by_name_and_who_joins_again_is_the_same",
        ),
    ),
    "F14": Row(
        "one fault after the other, at random moments",
        "after each the run goes on from its file; losses and weights equal the undisturbed run's; "
        "no files leak",
        _CHAOS,
        "the runs are minutes long, not hours",
    ),
    "F15": Row(
        "both machines in virtual time",
        "every value arrives once and whole, whatever the order and however often links break; "
        "nothing that peers or a worker say, in any order, raises anything",
        tests_of(
            "agent/core/test_core_links:test_every_value_arrives_once_and_whole_however_often_a_link_breaks",
            "agent/core/test_credit:test_values_that_overtake_one_another_all_arrive_the_most_urgent_first",
            "wire/test_session:test_a_whole_session_with_a_switch_of_plans",
            "agent/core/test_core_fuzz:test_nothing_that_is_said_breaks_the_core "
            "test_nothing_that_is_said_for_long_breaks_the_core",
            "sdk/sessions/test_controller_fuzz:test_nothing_that_agents_say_breaks_the_controller "
            "test_nothing_that_agents_say_for_long_breaks_the_controller",
        ),
    ),
    "S1": Row(
        "a stranger says anything",
        "it is told nothing, on any channel, with any or no key",
        tests_of(
            "agent/test_agent_process:test_a_stranger_gets_nothing_whatever_it_says "
            "test_a_client_that_expects_another_device_gets_nothing",
            "security/test_strangers:test_s1_a_name_and_a_password_are_no_key",
        ),
    ),
    "S2": Row(
        "the authenticator fails, or the library cannot encrypt",
        "nobody comes in, and the agent says why it does not start",
        tests_of(
            "agent/net/test_server_sockets:test_an_authenticator_that_fails_lets_nobody_in "
            "test_without_any_authenticator_nobody_comes_in "
            "test_an_authenticator_that_is_dead_keeps_the_agent_from_starting "
            "test_a_weakened_socket_keeps_the_agent_from_starting "
            "test_without_encryption_or_with_an_old_library_it_says_so"
        ),
    ),
    "S3": Row(
        "strangers in numbers: silent, garbage, huge frames",
        "memory grows by less than 32 MiB; those who are paired are answered all the time",
        tests_of(
            "security/test_strangers:test_s3_silent_connections_are_cut_off "
            "test_s3_garbage_takes_nothing_from_those_who_are_paired "
            "test_s3_a_frame_of_a_gibibyte_takes_no_memory",
            "agent/test_agent_process:test_a_huge_frame_before_the_handshake_takes_no_memory",
            "agent/net/test_socket_memory:test_strangers_are_so_many_and_the_oldest_goes_first",
            "agent/net/test_peer_connections:test_a_device_for_which_no_socket_is_left_waits_for_one",
            "agent/net/test_pairing_listener:test_a_disk_that_is_full_closes_no_pairing_port",
        ),
    ),
    "S4": Row(
        "guessing, changing or replaying a pairing",
        "three tries, one success, and no key that somebody exchanged on the way; nobody waits for "
        "one that never ends its message",
        tests_of(
            "agent/core/test_pairing_window:test_whatever_is_exchanged_on_the_way_ends_the_attempt "
            "test_a_reflected_message_is_refused "
            "test_three_tries_in_all_then_even_the_right_code_is_refused "
            "test_expired_after_its_time_even_for_whoever_is_at_the_desk "
            "test_refuses_messages_that_do_not_hold_and_never_pairs test_one_visitor_at_a_time",
            "sdk/discover/test_pairing:"
            "test_one_that_says_a_message_byte_by_byte_is_not_waited_for_longer",
        ),
        "the binding of keys and code was reviewed by no cryptographer",
    ),
    "S5": Row(
        "hostile multicast",
        "names and addresses that cannot be are dropped, of others 64 are kept; keys decide, never "
        "addresses",
        tests_of(
            "sdk/discover/test_mdns:test_refuses "
            "test_keeps_every_candidate_address_because_keys_decide "
            "test_a_flood_of_names_stops_at_the_cap",
            "agent/test_agent_life:test_two_devices_of_one_name_are_both_announced",
        ),
        "the multicast library itself is not fuzzed here",
    ),
    "S6": Row(
        "spoiled frames; a worker or an agent that was taken over",
        "nothing but wire errors; the agent answers the next message, and the notebook's other "
        "devices work on; a notebook holds no more of a device's values than it asked for, and "
        "shows nothing of its texts that hides",
        tests_of(
            "security/test_wire_fuzz:test_s6_spoiled_frames_only_ever_raise_wire_errors "
            "test_s6_many_more_spoiled_frames",
            "wire/test_frames:test_arbitrary_bytes_only_ever_raise_wire_errors "
            "test_mutated_frames_decode_or_raise_wire_errors",
            "agent/test_agent_process:test_broken_frames_of_a_paired_peer_are_answered_or_dropped",
            "agent/test_hostile_worker:test_the_agent_outlives_its_worker",
            "agent/core/test_core_worker:test_a_worker_that_lets_go_of_what_it_does_not_hold_frees_no_place",
            "sdk/run/test_text:test_what_is_no_choice_of_tokens_ends_its_own_text_and_no_other",
        )
        + TAKEN_OVER_AGENTS,
    ),
    "S7": Row(
        "spoiled graphs, and operators with hostile arguments",
        "refused before memory is taken or native code runs; no crash, and no result depends on "
        "what lay in memory",
        tests_of(
            "security/test_wire_fuzz:test_s7_spoiled_graphs_only_ever_raise_segment_errors "
            "test_s7_many_more_spoiled_graphs",
            "security/test_operators:test_no_call_crashes_or_reads_what_is_not_its_own "
            "test_many_more_calls test_sizes_that_torch_does_not_check_are_refused_by_rule",
            "agent/worker/test_interpreter:test_refuses_to_make_what_no_memory_holds "
            "test_refuses_parameters_that_no_memory_holds",
            "security/test_borrowing:test_a_buffer_of_indices_that_changes_before_backward "
            "test_indices_that_another_segment_gave_out_and_changes_before_backward "
            "test_a_segment_borrows_of_its_own_kind_alone",
        ),
        "what an operator takes for its own use in between is bounded by the worker's limit alone",
    ),
    "S8": Row("the attacks A1 to A15", "all refused", ()),
    "S9": Row(
        "a notebook is forgotten while it is connected",
        "it is cut off at once, and with it the members of its home; also where the disk is full, and "
        "after the power was cut",
        tests_of(
            "agent/test_keys:test_on_a_full_disk_a_peer_is_forgotten_too_and_may_pair_again_later",
            "wire/test_durable_rename:test_a_change_has_its_name_on_the_disk",
            "agent/test_agent_life:test_a_forgotten_notebook_is_cut_off_at_once "
            "test_with_a_forgotten_notebook_the_members_of_its_home_are_cut_off",
        ),
    ),
    "S10": Row(
        "a session is recorded and played again; bits are flipped on the way",
        "nothing is said twice; messages are lost, never changed",
        tests_of(
            "security/test_strangers:test_s10_a_recorded_session_played_again_says_nothing "
            "test_s10_flipped_bits_lose_messages_and_never_change_one"
        ),
    ),
    "S11": Row(
        "a line that guards something is taken away",
        "a test fails",
        tests_of(
            "security/test_mutations:test_every_guard_is_where_it_is_looked_for "
            "test_s11_the_tests_pass_with_every_guard test_s11_a_guard_that_is_gone_is_missed"
        ),
    ),
    "S12": Row(
        "a paired notebook asks for more than a busy worker gets done, or for one thing that leads "
        "to thousands, or sends a message without an end",
        "it is refused as busy, or cut off, before memory grows without bound; the agent never "
        "goes deeper, and looks at the others in between",
        tests_of(
            "agent/core/test_core_limits:test_what_waits_behind_a_busy_worker_has_an_end "
            "test_what_waits_for_a_worker_that_is_only_starting_has_an_end_too "
            "test_values_are_rejected_while_too_much_waits "
            "test_instructions_of_executions_have_an_end test_plans_have_an_end "
            "test_the_answers_that_are_kept_have_an_end test_aborted_sends_to_nobody_are_not_kept",
            "agent/core/test_core_chains:test_loose_sends_that_wait_for_one_another_all_leave_in_order "
            "test_executions_behind_one_another_that_have_nothing_left_to_wait_for_all_end "
            "test_values_that_wait_for_one_place_all_get_it "
            "test_executions_that_end_for_one_anothers_room_all_end",
            "agent/net/test_fair_receive:test_a_round_takes_few_messages_and_few_bytes_of_a_notebook "
            "test_the_work_of_reading_a_plan_is_bounded_by_its_bytes "
            "test_a_message_of_any_length_takes_a_few_frames_of_a_round_and_its_sender_is_cut",
            "agent/net/test_socket_memory:test_a_message_without_an_end_ends_with_its_connection_and_the_others_stay "
            "test_whole_messages_that_nobody_reads_count_too",
            "wire/test_bounded_receive:test_no_call_takes_or_keeps_more_than_a_message_may_have "
            "test_one_message_that_never_ends_is_never_forgiven_much",
            "wire/test_chunks:test_no_value_costs_more_messages_than_its_bytes_are_worth",
            "security/test_unread:test_two_connections_of_one_key_that_take_turns_get_the_window_once "
            "test_answers_that_nobody_reads_are_so_many",
            "agent/core/test_core_sessions:test_the_notebook_whose_run_is_on_says_where_a_device_is",
            "agent/core/test_core_members:test_a_notebook_is_no_member_of_another_ones_home "
            "test_a_notebook_that_comes_later_is_a_member_no_more",
            "agent/core/test_large_programs:test_each_event_of_a_large_program_takes_no_more_than_a_few_steps "
            "test_no_event_and_no_round_does_more_than_its_share "
            "test_early_values_are_as_many_as_executions_under_way_have_instructions "
            "test_early_values_that_the_worker_holds_are_no_more_than_its_memory",
            "agent/core/test_send_bounds:test_a_pace_keeps_the_lane_for_so_long_and_no_longer "
            "test_a_pace_does_not_outlive_what_it_was_for "
            "test_so_many_values_are_under_way_and_no_more",
            "agent/core/test_core_loose:test_every_place_is_free_in_the_end_whatever_happens_in_whatever_order",
            "security/test_strangers:test_s12_a_message_of_very_many_frames_takes_bounded_memory_and_nobodys_time",
        ),
        "one plan of the largest size is read in one piece, about a second on a slow device; with "
        "300,000 sends waiting, one collection of Python's garbage takes up to a second, too; "
        "messages without an end are bounded on Linux alone, to what PROTOCOL.md says",
    ),
    "S13": Row(
        "a worker that was taken over turns on its agent, or makes noise instead of answering",
        "on Linux it changes no file, sends no signal but to itself, touches no other process, "
        "has no children and no sockets and takes no more memory than its limit, also where root runs it; with Landlock it reads nothing "
        "of people and services; only answers that are due count",
        tests_of(
            "agent/worker/test_files_of_others:test_what_the_bounds_say_holds "
            "test_without_a_filter_the_bounds_say_so",
            "agent/worker/test_sandbox:test_files_memory_and_network_are_out_of_reach",
            "agent/worker/test_seccomp:test_the_filter_refuses "
            "test_an_accelerator_is_mapped_and_told_what_its_driver_wants "
            "test_a_worker_that_was_taken_over_cannot_touch_its_agent "
            "test_every_thread_of_a_worker_at_work_is_filtered",
            "agent/core/test_core_worker:test_a_worker_that_says_anything_but_what_is_due_is_silent "
            "test_a_worker_that_never_gets_ready_is_silent_whatever_else_it_says",
        ),
        "other systems and processors have no such filter; without Landlock it reads what its user may read, its "
        "agent's keys too",
    ),
    "S14": Row(
        "a recording that somebody made up",
        "it is told, or is an error in one sentence; no file makes it wait or take memory",
        tests_of(
            "agent/test_hostile_recordings:test_whatever_is_in_a_recording_is_told_or_an_error_in_one_line "
            "test_many_spoiled_recordings test_what_no_agent_records_is_an_error "
            "test_settings_that_no_agent_has_are_an_error "
            "test_what_a_recording_says_it_left_out_takes_no_memory test_a_line_has_an_end "
            "test_what_is_no_ordinary_file_is_an_error_at_once "
            "test_an_entry_takes_no_more_memory_than_it_is_long"
        ),
    ),
    "S15": Row(
        "a coordinator is spoken to by strangers, or by a notebook it knows that says anything; it "
        "lies to a notebook; its disk is full, its files are cut or changed",
        "strangers are not answered, and take nobody's connection; others are answered in words, and "
        "nothing outside its folder is read or changed; what was learned stays; lies are errors in "
        "words",
        tests_of(
            "sdk/coordinator/test_server:test_who_is_not_known_is_refused_by_name_and_the_wrong_key_too "
            "test_where_nobody_checks_keys_nobody_comes_in "
            "test_what_cannot_be_asked_is_refused_and_leaves_nothing "
            "test_no_request_of_any_form_is_anything_but_answered "
            "test_a_file_that_came_otherwise_than_it_was_sent_is_no_job "
            "test_more_than_the_disk_has_is_refused_before_it_is_sent",
            "sdk/coordinator/test_job_files:test_what_has_come_is_on_the_disk_and_not_only_on_its_way",
            "sdk/coordinator/test_server_socket:test_answers_that_nobody_takes_are_few "
            "test_a_message_of_too_many_frames_ends_its_connection "
            "test_a_message_without_an_end_ends_with_its_connection "
            "test_strangers_who_say_nothing_are_cut_off_the_oldest_first "
            "test_of_too_many_connections_of_a_key_the_oldest_end "
            "test_others_are_answered_while_a_job_is_looked_through "
            "test_files_come_in_order_so_that_none_has_holes "
            "test_a_state_beyond_the_memory_here_is_refused_before_it_is_sent",
            "sdk/coordinator/test_checked_replies:test_what_no_coordinator_says_is_not_believed "
            "test_what_a_terminal_would_obey_is_not_shown "
            "test_a_state_that_does_not_come_leaves_nothing "
            "test_one_that_never_stops_is_not_waited_for_without_end",
            "sdk/coordinator/test_batch_store:test_an_order_that_does_not_hold_is_refused_before_anybody_trains",
            "sdk/coordinator/test_journal:test_cut_anywhere_it_tells_what_was_whole_and_goes_on "
            "test_a_line_that_was_changed_is_named "
            "test_where_the_disk_is_full_in_the_midst_of_a_line_it_holds_what_was_whole",
            "sdk/coordinator/test_coordinator:test_a_full_disk_ends_it_and_says_so_and_it_goes_on_where_there_is_room "
            "test_a_spoiled_job_ends_neither_the_coordinator_nor_the_others "
            "test_a_device_that_says_for_ever_that_it_gets_on_keeps_nobody_from_ending",
            "sdk/coordinator/test_job_files:test_a_pipe_among_its_files_is_waited_for_by_nobody",
        ),
        "a notebook that it knows may fill its disk",
    ),
    "S16": Row(
        "the HTTP entrance is asked by strangers: silent, half said, spoiled or large requests, "
        "answers that are not read, pages of other places",
        "whoever asks is answered all the time; what is no request is refused by its field before "
        "it takes memory or time; without a token nobody comes by another name than this computer's",
        tests_of(
            "sdk/serve/gateway/test_gateway:test_what_is_no_request_is_refused_by_its_field "
            "test_silent_connections_shut_nobody_out_and_are_closed "
            "test_connections_that_break_and_come_again_from_one_port_take_one_place "
            "test_no_header_says_which_connection_asks test_a_stream_whose_reader_has_left_ends "
            "test_others_are_answered_while_very_much_is_asked_for "
            "test_bodies_have_room_together_and_give_it_back "
            "test_a_body_in_chunks_that_becomes_too_long_is_refused "
            "test_who_comes_by_another_name_than_this_computers_gets_nothing "
            "test_a_page_of_another_place_computes_nothing "
            "test_a_token_that_no_client_can_show_is_told_at_once "
            "test_a_token_is_asked_for_and_compared "
            "test_a_host_that_looks_like_the_open_route_opens_no_other",
            "sdk/serve/gateway/test_connection_limit:test_when_it_is_full_the_longest_without_a_request_makes_room "
            "test_whatever_comes_and_goes_the_bounds_hold_and_nothing_is_left",
            "sdk/serve/gateway/test_listener:"
            "test_without_a_descriptor_left_callers_are_turned_away_and_the_next_ones_come_in "
            "test_a_sweep_parts_from_who_asks_nothing",
            "sdk/serve/gateway/test_middleware:test_who_does_not_read_its_answer_is_disconnected",
            "sdk/serve/gateway/test_protocol:"
            "test_a_spoiled_request_is_read_or_refused_by_its_field "
            "test_json_that_takes_long_or_much_is_refused_before_it_is_read",
            "sdk/serve/gateway/test_text:test_half_a_character_anywhere_is_answered_in_json",
        ),
        "one JSON body of the largest size is read in one piece, up to a second; 500 handshakes of TLS "
        "a second that never end, on two cores, have others wait for 5 to 15 s",
    ),
    "S17": Row(
        "a paired notebook asks for leases without end, or runs under names that are made up; a "
        "device lies about a lease",
        "no device forgets a lease that is held, nor one of another notebook; who holds as many as "
        "there may be gets no more; what is on disk is read again; one lie keeps no coordinator "
        "from acting for ever",
        tests_of(
            "agent/core/test_core_leases:"
            "test_leases_of_another_notebook_make_nobody_forget_a_promise_or_a_record "
            "test_whoever_holds_as_many_as_there_may_be_gets_no_more_until_one_is_over "
            "test_after_a_restart_what_may_be_held_still_is_not_forgotten "
            "test_a_run_under_what_is_no_name_is_refused_and_never_on_disk",
            "sdk/coordinator/test_succession:"
            "test_near_worlds_whatever_the_order_nothing_told_is_lost_and_never_two_act "
            "test_a_device_that_lies_about_a_lease_is_waited_for_no_longer_than_one_lasts "
            "test_one_lie_about_terms_does_not_keep_it_from_acting_for_ever "
            "test_the_search_finds_a_device_that_forgets_what_is_held",
        ),
        "whoever is paired and knows a lease's name may ask for it once its time is over, or end its "
        "run on a device with a plan of a newer term, which is believed; the name is a digest that "
        "those have who share the job",
    ),
    "S18": Row(
        "a coordinator, or a notebook that is known, asks another coordinator to be let in, for "
        "files, or for the rest of a journal, with any names, numbers and keys; one that is copied "
        "lies to who copies it",
        "refused in words; who has not joined copies nothing; nothing outside the folder of a job is "
        "read or written, and no answer is longer than a part of a file; a copy stays as it is where "
        "what comes is none",
        tests_of(
            "sdk/coordinator/test_hostile_peers:test_a_notebook_that_has_not_joined_copies_nothing "
            "test_no_file_but_a_jobs_own_is_given_to_who_has_joined "
            "test_a_file_is_given_in_parts_of_bounded_size "
            "test_an_odd_pull_counts_for_nothing "
            "test_no_more_join_than_have_room "
            "test_files_that_no_job_has_are_not_asked_for "
            "test_a_file_that_does_not_end_or_does_not_come_is_given_up "
            "test_who_copies_from_one_that_lies_without_end_can_be_ended "
            "test_a_seat_that_is_anywhere_is_refused "
            "test_who_copies_is_told_lies_and_keeps_what_it_has "
            "test_whoever_is_refused_is_told_why_and_others_are_answered"
        ),
        "who was told to trust a key lets it join, and have a copy of all that is trained",
    ),
    "S19": Row(
        "who hands a training over names files of arrays for its coordinator to read, or one of "
        "these files is none",
        "nothing is read but plain files in the folder that the coordinator's owner gave it, whatever "
        "links there are; objects are never unpickled, sizes are checked before memory is taken, and "
        "each refusal names file and folder",
        tests_of(
            "sdk/run/test_array_files:test_nothing_outside_of_the_folder_is_read "
            "test_what_is_no_array_of_numbers_is_refused "
            "test_what_was_pickled_is_not_run "
            "test_more_than_fits_in_memory_is_not_unpacked "
            "test_a_spoiled_file_is_refused_or_has_rows_that_can_be_read",
            "sdk/coordinator/test_file_batches:"
            "test_a_coordinator_that_was_given_no_folder_reads_none "
            "test_a_job_whose_data_is_not_there_is_refused_by_file_and_folder "
            "test_a_hostile_description_of_files_is_refused "
            "test_nobody_else_says_which_folder_is_read "
            "test_a_folder_is_said_from_the_root_on",
            "sdk/test_odd_files:test_what_is_no_file_is_refused_by_its_name",
        ),
        "of files beyond 64 MiB, 64 pieces are compared with the notebook's; who may hand over can "
        "learn what is in the files of that folder",
    ),
    "S20": Row(
        "a relay is used by strangers, in numbers, or for anything else than its devices; it lies to a "
        "device, or changes, drops, repeats or mixes up what it passes on",
        "who was not invited registers nothing; who is not paired gets a handshake, which the device "
        "refuses; ports lead to that device's agent alone; places and descriptors are bounded, and those "
        "who are paired are answered meanwhile; a relay that lies ends connections, and no message is "
        "changed or said twice",
        tests_of(
            "agent/relay/test_relay:test_a_stranger_hears_nothing "
            "test_it_is_no_way_for_anything_else "
            "test_strangers_that_say_nothing_hold_no_descriptors "
            "test_a_key_that_was_not_invited_registers_nothing "
            "test_a_ticket_that_was_guessed_leads_nowhere "
            "test_who_is_paired_takes_no_more_places_than_there_are "
            "test_strangers_where_devices_dial_take_nobodys_place_but_their_own "
            "test_a_device_that_is_removed_is_cut_off_at_once",
            "agent/relay/test_lying_relays:test_it_gets_to_the_agents_four_ports_and_no_further "
            "test_nonsense_is_passed_over test_what_it_asks_for_is_bounded "
            "test_a_message_of_very_many_frames_takes_bounded_memory "
            "test_one_of_another_key_is_not_talked_to "
            "test_what_it_spoils_ends_a_connection_and_changes_no_message",
            "agent/relay/test_handshake:test_it_opens_with_the_devices_ready_and_not_before "
            "test_a_visitor_cannot_open_it_itself test_nothing_else_crosses_in_either_direction "
            "test_whoever_the_device_refuses_is_cut_off test_a_pairing_has_its_bytes_and_no_more",
            "agent/relay/test_visits:test_a_stranger_takes_places_of_its_own_only "
            "test_strangers_of_many_addresses_have_so_many_places_together "
            "test_one_device_does_not_take_all_places "
            "test_of_one_address_so_many_a_second_are_taken_and_of_others_as_many "
            "test_addresses_without_end_take_bounded_memory",
            "agent/relay/test_listener:"
            "test_one_address_that_comes_without_end_is_served_as_often_as_it_may_and_others_too "
            "test_without_descriptors_it_waits_and_goes_on",
        ),
        "a relay sees who talks when and how much, and may cut anybody; strangers with very many "
        "addresses, or some ten thousand connections a second, can keep new visitors waiting for a "
        "second or two",
    ),
    "S21": Row(
        "a paired notebook, its worker and its devices do anything beside another notebook's run on "
        "the same agent: names of its runs and devices, values for it, plans larger than what is "
        "left, urgent bulk on the links, workers that die, hang or lie",
        "the other one is told and sent, and its worker computes, exactly what it would alone; the "
        "limits of all workers together are the owner's; links take turns by bytes",
        tests_of(
            "agent/core/test_sharing:"
            "test_whatever_another_notebook_and_its_worker_do_this_one_notices_nothing "
            "test_anothers_run_is_unknown "
            "test_anothers_name_of_a_run_is_taken_also_when_that_was_lost_with_its_worker "
            "test_a_value_for_anothers_run_is_not_taken "
            "test_what_others_claim_is_not_there_to_be_claimed_and_the_refusal_says_so "
            "test_the_limits_of_all_workers_are_the_owners_together "
            "test_no_more_notebooks_compute_than_may "
            "test_the_end_of_anothers_worker_ends_nothing_here "
            "test_a_worker_that_hangs_is_ended_and_the_other_one_is_not",
            "agent/core/test_lanes:"
            "test_a_window_that_another_notebooks_values_have_used_up_is_not_this_ones "
            "test_lanes_take_turns_whatever_their_priorities "
            "test_many_small_values_have_no_more_of_a_link_than_a_large_one "
            "test_a_pace_holds_no_other_notebooks_values",
            "agent/test_shared_agent:"
            "test_two_notebooks_compute_side_by_side_each_within_its_memory",
            "agent/net/test_ending_workers:"
            "test_one_that_closed_its_pipe_and_goes_on_is_ended_later "
            "test_nobody_waits_for_the_memory_of_one_that_is_killed",
        ),
        "the system divides the processor, evenly between workers; memory is claimed by whoever "
        "comes first; whoever guesses the name of a run (48 random bits) may take it before",
    ),
    "S22": Row(
        "a member asks for a service that it was not granted, more often than it may, with inputs "
        "of another shape, a path that is forged or goes round, again, or after its grant is over; "
        "one that was asked lies about path, answer or how idle it is",
        "each is refused by name before anything is computed, and learns nothing of services that "
        "are not its own; what is revoked ends at once; a grant computes and changes nothing; no "
        "path that cannot be is told on; others are answered meanwhile",
        tests_of(
            "agent/core/test_core_parts:"
            "test_what_does_not_hold_is_not_granted test_nobody_but_the_device_before_asks_for_a_part "
            "test_values_of_a_part_are_those_that_were_granted "
            "test_what_is_under_way_ends_where_its_part_is_granted_otherwise",
            "agent/core/test_core_grants:"
            "test_what_is_kept_of_programs_to_be_asked_for_is_bounded "
            "test_what_is_under_way_goes_on_as_it_was_admitted_whatever_rows_are_granted_since "
            "test_what_was_handed_on_goes_elsewhere_whatever_rows_are_granted_since "
            "test_refuses_by_name_before_anything_is_computed "
            "test_who_has_no_grant_does_not_learn_whether_there_is_such_a_service "
            "test_a_granted_member_of_another_home_is_nobody_here "
            "test_another_notebook_neither_asks_nor_grants_what_is_not_its_own "
            "test_a_revoked_member_may_not_ask_and_what_it_has_under_way_ends "
            "test_a_grant_is_over_when_its_time_is test_a_grant_is_gone_with_its_run "
            "test_nobody_asks_more_often_than_was_granted test_a_renewal_gives_nobody_more_at_once "
            "test_a_member_that_may_only_be_handed_requests_may_not_ask "
            "test_a_request_that_comes_again_is_not_done_again "
            "test_refuses_what_is_not_an_input_that_was_granted "
            "test_nobody_adds_to_another_one_s_request "
            "test_requests_without_inputs_are_bounded_and_end "
            "test_a_path_that_cannot_be_is_not_told_on test_who_was_not_asked_cannot_answer "
            "test_only_those_who_may_be_handed_requests_are_believed_to_be_idle "
            "test_less_than_nothing_is_not_believed "
            "test_refuses_to_grant_what_does_more_than_answer "
            "test_refuses_grants_that_do_not_hold test_refuses_members_that_do_not_hold "
            "test_services_are_counted",
            "sdk/sessions/test_service_requests:"
            "test_a_device_that_tells_what_cannot_be_loses_its_session "
            "test_outputs_that_nobody_expects_end_the_session "
            "test_a_request_ends_where_one_of_its_inputs_is_not_taken "
            "test_a_reason_that_is_none_is_not_told_on",
            "agent/core/test_core_asks:"
            "test_a_request_ends_where_one_of_its_inputs_has_no_room "
            "test_a_late_answer_is_of_use_for_as_long_as_was_said",
            "sdk/serve/runtime/test_entrances:"
            "test_a_device_without_time_hands_on_and_the_answer_tells_the_way "
            "test_nobody_is_an_entrance_of_what_has_ended",
        ),
        "who is handed a request sees its inputs, and may answer wrongly; how idle it is, it says "
        "itself; a notebook that guesses a service's name may take it before, and answers for it",
    ),
    "S23": Row(
        "a notebook offers weights without end, or of another content than it says, or asks for "
        "those of another one; somebody puts files, links or pipes where weights are kept; the "
        "disk is full, or slow, or fails",
        "what is used is what was offered, by its sum, made as it is read; no notebook learns or "
        "uses what another one has, nor drives it out; nothing outside the folder is read, written "
        "or removed; what cannot be kept is sent",
        tests_of(
            "agent/core/test_kept_weights:"
            "test_what_cannot_be_read_or_is_of_another_content_is_sent_after_all "
            "test_another_notebook_does_not_learn_what_is_kept "
            "test_nobody_offers_to_the_run_of_another test_a_member_does_not_say_what_is_kept "
            "test_an_offer_that_does_not_hold_is_rejected "
            "test_offers_are_looked_at_one_after_the_other_and_have_an_end "
            "test_a_place_is_the_disks_until_it_is_through "
            "test_a_slow_disk_holds_no_more_than_half_of_the_memory_for_values",
            "agent/core/test_weight_cache:"
            "test_a_flood_of_one_notebook_drives_out_its_own "
            "test_a_flood_of_small_ones_drives_out_its_own",
            "agent/net/test_kept_files:"
            "test_what_has_another_content_than_was_said_is_not_kept "
            "test_a_file_that_is_not_what_its_name_says_is_never_used "
            "test_a_planted_file_of_another_type_or_shape_is_never_used "
            "test_nothing_is_written_through_a_link "
            "test_a_link_in_the_place_of_the_file_that_is_written_is_not_followed "
            "test_a_full_disk_keeps_nothing_and_stays_as_it_is "
            "test_a_disk_that_fails_is_told_once "
            "test_what_is_removed_is_that_of_this_notebook_alone "
            "test_what_lies_there_of_others_goes_at_the_start "
            "test_links_that_lie_there_are_taken_away_and_not_followed "
            "test_a_link_in_the_place_of_all_is_refused",
            "sdk/run/test_kept_weights:test_files_that_somebody_spoiled_are_never_used "
            "test_weights_that_were_changed_are_sent",
        ),
        "weights lie on the device's disk as they are, not encrypted, until its owner forgets the "
        "notebook or keeps none; who keeps most learns from what goes that others keep something",
    ),
    "L1": Row(
        "load",
        "memory and open files stay as they were",
        tests_of("security/test_load:test_l1_memory_stays_flat_under_load"),
        "one agent; not eight, and not for an hour",
    ),
    **ATTACKS,
}


def proofs_of(name: str) -> tuple[str, ...]:
    """The tests of a row; S8 stands for all known attacks."""
    if name == "S8":
        return tuple(
            dict.fromkeys(
                test for row, r in ROWS.items() if row.startswith("A") for test in r.tests
            )
        )
    return ROWS[name].tests
