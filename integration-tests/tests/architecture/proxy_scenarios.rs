//! The scenarios of DNS names and proxies that Cilium's behaviour consists of, by number: each has a test, by file and name, or is
//! in the list of those without one.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

const SCENARIOS: u8 = 77;

const NAMES: &str = "lib/fqdn/tests/fqdn.rs";
const BOOK: &str = "cells/proxy/fqdn/src/book.rs";
const DNS: &str = "cells/proxy/dns/tests/dns_proxy/main.rs";
const MESSAGES: &str = "cells/proxy/dns/src/message.rs";
const QUERIES: &str = "integration-tests/tests/packets/dns_names.rs";
const PORTS: &str = "cells/proxy/ports/tests/handles.rs";
const PORTS_FILE: &str = "cells/proxy/ports/src/file.rs";
const POLICIES: &str = "cells/proxy/envoy/src/policies/tests.rs";
const REDIRECTS: &str = "cells/proxy/envoy/tests/envoy/redirects.rs";
const XDS: &str = "lib/xds/tests/model.rs";
const PROGRESS: &str = "cells/proxy/envoy-config/src/progress/tests.rs";
const SCRIPTS: &str = "integration-tests/tests/node/scripts.rs";
const PARSE: &str = "cells/policy/engine/tests/parse/proxy.rs";

/// The tests, by the scenarios that they hold.
const TESTS: &[(&[u8], &str, &str)] = &[
    (&[1, 2, 3], NAMES, "patterns_match_names_as_documented"),
    (&[4], PARSE, "names_select_by_their_label_as_written"),
    (&[4, 5, 7], NAMES, "rules_combine_names_and_patterns"),
    (&[6], NAMES, "texts_of_requests_are_validated"),
    (&[2, 8, 22], DNS, "queries_of_both_families_and_protocols_are_answered_by_the_asked_server"),
    (&[9], DNS, "denied_queries_are_refused_and_not_forwarded"),
    (&[10], "cells/proxy/standalone/src/view.rs", "a_snapshot_decides_as_the_agent_does"),
    (&[12], DNS, "a_server_that_does_not_answer_is_reported"),
    (&[13], DNS, "a_server_that_ends_its_connection_is_an_error_for_its_queries"),
    (&[14], MESSAGES, "large_answers_are_truncated_over_udp"),
    (&[15], DNS, "the_limit_of_queries_refuses_after_the_grace_period"),
    (&[16, 17], DNS, "transparent_mode_shows_the_client_to_servers_of_the_cluster"),
    (
        &[18],
        "ebpf/object/tests/datapath/firewall.rs",
        "queries_of_the_host_go_to_the_proxy_and_the_proxys_to_the_server",
    ),
    (&[19], DNS, "messages_that_are_no_queries_are_not_forwarded"),
    (&[19], MESSAGES, "requests_that_cilium_refuses_are_refused"),
    (&[20], DNS, "queries_over_tcp_are_pipelined"),
    (&[22, 31], MESSAGES, "only_the_name_and_its_aliases_have_addresses"),
    (&[23], NAMES, "a_minimum_keeps_addresses_of_answers_that_expire_at_once"),
    (&[24], NAMES, "those_that_expire_first_leave_when_a_name_has_too_many"),
    (&[25, 26], NAMES, "selectors_apply_to_names_of_all_endpoints"),
    (&[26], BOOK, "selectors_of_new_policies_select_known_names"),
    (&[27], BOOK, "an_address_has_the_labels_of_names_world_and_longest_prefix"),
    (&[29], BOOK, "an_answer_waits_only_for_addresses_that_the_kernel_does_not_have"),
    (&[32], DNS, "forged_answers_are_ignored"),
    (&[32], MESSAGES, "answers_to_other_requests_are_refused"),
    (&[33, 34, 36], NAMES, "addresses_are_kept_while_they_have_connections"),
    (&[34], BOOK, "an_expired_address_stays_as_long_as_it_has_a_connection"),
    (&[35], NAMES, "zombies_are_evicted_by_age_of_their_connection"),
    (&[37, 38], "cells/proxy/fqdn/src/rest.rs", "entries_have_the_form_of_cilium_and_filters_select_them"),
    (&[33, 39], QUERIES, "a_pod_reaches_the_addresses_of_allowed_names_over_a_kill"),
    (&[41], QUERIES, "a_standalone_proxy_answers_while_the_agent_is_away"),
    (&[42], NAMES, "rules_of_records_are_checked_by_server_and_port"),
    (
        &[43],
        "cells/identity/allocator/src/nodes.rs",
        "a_restart_keeps_the_identities_of_names_that_the_ipcache_has",
    ),
    (&[44], QUERIES, "a_pod_reaches_the_addresses_of_allowed_names_over_a_kill"),
    (&[45], PORTS_FILE, "old_and_damaged_files_are_not_used"),
    (&[45], PORTS_FILE, "names_in_rules_have_their_kind"),
    (&[45, 59], REDIRECTS, "a_restart_keeps_the_port_and_gives_no_policies_before_all_are_known"),
    (
        &[46],
        "integration-tests/tests/packets/http_redirect.rs",
        "a_connection_with_rules_of_http_goes_through_the_proxy_with_the_address_of_its_client",
    ),
    (&[47], "ebpf/object/tests/datapath/proxy.rs", "entries_follow_a_policy_that_starts_or_ends_to_redirect"),
    (&[48], PORTS, "references_follow_the_redirects"),
    (&[49], PORTS, "ports_of_the_range_are_given_to_one_proxy_each"),
    (&[50], XDS, "a_refused_version_is_not_repeated_and_the_next_one_heals"),
    (&[51], PORTS, "redirects_have_a_port_only_while_the_proxy_listens_and_rules_lead_to_it"),
    (&[51], POLICIES, "a_rule_with_a_listener_is_for_that_listener_only"),
    (&[52], POLICIES, "ranges_and_named_ports_have_numbers"),
    (&[53], POLICIES, "header_matches_have_their_action"),
    (&[54], POLICIES, "names_of_servers_are_in_the_form_of_envoy"),
    (&[56], "ebpf/object/tests/datapath/tproxy.rs", "redirected_packets_reach_sockets_without_rules"),
    (
        &[57],
        "cells/proxy/envoy-config/src/from_proxy.rs",
        "packets_of_proxies_go_by_cilium_host_and_others_by_their_routes",
    ),
    (&[58, 61, 63], REDIRECTS, "a_rule_of_http_gets_a_listener_policies_and_then_traffic"),
    (&[58, 60], XDS, "clients_converge_to_their_subscription"),
    (&[59], XDS, "versions_continue_after_those_of_an_earlier_process"),
    (&[60], XDS, "names_are_answered_when_they_exist"),
    (&[62], XDS, "a_refused_version_is_not_repeated_and_the_next_one_heals"),
    (&[62], REDIRECTS, "a_port_that_envoy_cannot_bind_is_exchanged_and_other_refusals_are_reported"),
    (&[64], POLICIES, "the_bytes_are_those_of_the_contract"),
    (&[65, 66, 67], SCRIPTS, "recorded_scripts_of_all_families_pass"),
    (&[68], "cells/proxy/envoy-config/src/redirects.rs", "the_oldest_wins_and_its_end_restores_the_next"),
    (&[69], PROGRESS, "a_port_that_envoy_cannot_bind_is_exchanged_a_few_times"),
    // `bad-resource.txtar`, `headless.txtar` and `ingress.txtar` of the family `envoy-config`.
    (&[70, 72, 73], SCRIPTS, "scripts_of_our_own_pass"),
    (&[71], "cells/proxy/envoy-config/src/parse/names.rs", "names_are_qualified_once"),
    (&[74], "ebpf/object/tests/datapath/auth.rs", "packets_pass_after_authentication_until_it_expires"),
    (&[74, 75], "cells/policy/auth/src/tests.rs", "identities_of_two_agents_authenticate"),
    (&[76], "cells/policy/auth/src/cluster.rs", "what_is_not_known_is_needed"),
    (&[77], "ebpf/object/tests/datapath/auth.rs", "without_mesh_auth_packets_stay_dropped"),
];

/// Scenarios without a test, and why.
const WITHOUT_TEST: [(&[u8], &str); 6] = [
    (&[11], "programs translate a service before they ask for its policy, whatever the port"),
    (&[21], "waits of 20 s and more; a port that stays taken fails the start"),
    (&[28], "addresses of the cluster have their own, longer or more trusted entries in the ipcache"),
    (
        &[30],
        "maps wait a second at most for Envoy, which another scenario's tests hold; answers wait for maps",
    ),
    (&[40], "rules are read before the first round of policy, as at every start"),
    (&[55], "there is no regeneration to undo: rules of proxies are rows that follow policy"),
];

#[test]
fn every_scenario_of_proxies_has_a_test() {
    let mut files: BTreeMap<&str, String> = BTreeMap::new();
    let mut named = BTreeSet::new();
    for (numbers, file, test) in TESTS {
        let text = files.entry(file).or_insert_with(|| {
            fs::read_to_string(crate::root().join(file)).unwrap_or_else(|e| panic!("{file}: {e}"))
        });
        assert!(text.contains(&format!("fn {test}(")), "{file} has no test {test}");
        named.extend(numbers.iter().copied());
    }
    let without: BTreeSet<u8> = WITHOUT_TEST.iter().flat_map(|(numbers, _)| *numbers).copied().collect();
    let both: Vec<&u8> = named.intersection(&without).collect();
    assert!(both.is_empty(), "with a test, and in the list of those without one: {both:?}");
    let all: BTreeSet<u8> = named.union(&without).copied().collect();
    assert_eq!(all, (1..=SCENARIOS).collect(), "each has a test or a reason");
}
