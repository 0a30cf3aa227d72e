"""The rows of attacks that are known from similar systems."""

from tests.security.row import Row, tests_of

ATTACKS: dict[str, Row] = {
    "A1": Row(
        "objects that run code where they are read (pickle)",
        "nothing here reads such objects or evaluates text",
        tests_of(
            "security/test_attacks:test_a1_nothing_unpickles_or_evaluates "
            "test_a1_a_pickle_is_no_message_on_any_channel",
            "agent/test_agent_process:test_a_pickle_on_any_socket_is_no_message",
            "sdk/graph/test_model_file:test_a_structure_of_answers_imports_nothing",
        ),
    ),
    "A2": Row(
        "arrays of objects",
        "no such type",
        tests_of("security/test_attacks:test_a2_an_array_of_objects_has_no_type_here"),
    ),
    "A3": Row(
        "msgpack's Unpacker used again after an error",
        "not used; the mended version is required",
        tests_of(
            "security/test_attacks:test_a3_msgpack_is_new_enough_and_no_unpacker_is_used_twice"
        ),
    ),
    "A4": Row(
        "torch.load",
        "never called",
        tests_of("security/test_attacks:test_a4_torch_load_is_not_reached"),
    ),
    "A5": Row(
        "saved programs (torch.export, torch.fx)",
        "refused before any loader, none of which is there",
        tests_of(
            "security/test_attacks:test_a5_a_saved_program_is_refused_before_any_loader "
            "test_a5_no_loader_of_programs_is_named"
        ),
    ),
    "A6": Row(
        "ONNX tensors in other files",
        "refused in graphs, subgraphs, attributes, sparse tensors and functions",
        tests_of(
            "security/test_attacks:test_a6_files_beside_an_onnx_model_are_refused_in_every_place",
            "sdk/graph/onnx/test_onnx_files:test_the_device_refuses",
        ),
    ),
    "A7": Row(
        "a model in memory that names a file of the current folder",
        "refused; the worker stands in a folder that does not exist",
        tests_of(
            "security/test_attacks:test_a7_a_model_in_memory_reads_no_file_of_the_folder_it_is_in",
            "agent/worker/test_sandbox:test_files_memory_and_network_are_out_of_reach",
        ),
    ),
    "A8": Row(
        "offsets, null buffers, unknown words, numbers as addresses",
        "every integer is checked, unknown words are refused, no field is an address",
        tests_of(
            "security/test_attacks:test_a8_every_integer_of_every_message_is_checked "
            "test_a8_an_unknown_word_is_refused_not_guessed test_a8_no_field_is_an_address"
        ),
    ),
    "A9": Row(
        "a verb without a check",
        "every verb of the table is said by a stranger; a new one is in the test by itself",
        tests_of(
            "security/test_attacks:test_a9_every_verb_is_said_by_strangers",
            "agent/test_agent_process:test_a_stranger_gets_nothing_whatever_it_says",
        ),
    ),
    "A10": Row(
        "a switch that takes the encryption away",
        "there is none",
        tests_of("security/test_attacks:test_a10_no_switch_takes_the_encryption_away"),
    ),
    "A11": Row(
        "a libzmq with known holes",
        "the agent does not start",
        tests_of(
            "security/test_attacks:test_a11_the_library_has_the_known_holes_mended",
            "agent/net/test_server_sockets:test_without_encryption_or_with_an_old_library_it_says_so",
        ),
    ),
    "A12": Row(
        "zeroconf with known holes",
        "the mended version is required",
        tests_of(
            "security/test_attacks:test_a12_multicast_is_read_by_a_library_with_the_known_holes_mended"
        ),
    ),
    "A13": Row(
        "a stranger uses resources up",
        "small caps before the handshake, and everything ends after 2 s",
        tests_of(
            "security/test_attacks:test_a13_who_waits_at_the_door_takes_little",
            "security/test_strangers:test_s3_silent_connections_are_cut_off",
        ),
    ),
    "A14": Row(
        "a guard that is defined and never used",
        "each is taken away in the long tests, and missed",
        tests_of(
            "security/test_attacks:test_a14_what_guards_is_used",
            "security/test_mutations:test_s11_a_guard_that_is_gone_is_missed",
        ),
    ),
    "A15": Row(
        "files of weights that do not hold",
        "named errors; agents read no such files at all",
        tests_of(
            "security/test_attacks:test_a15_a_file_of_weights_that_does_not_hold_is_named "
            "test_a15_the_agent_reads_no_such_file"
        ),
    ),
}
