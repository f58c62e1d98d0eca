//! The scenarios of services and address translation that Cilium's own tests have, by number: each is named by a test, as
//! "Scenario 5" or "Scenarios 3 to 5" in its comment, or it is in the list of those without one.

use std::collections::BTreeSet;
use std::fs;

const SCENARIOS: u8 = 90;
/// The crates with tests of packets and sockets.
const FOLDERS: [&str; 3] = ["ebpf", "cells/datapath/socket-lb", "cells/loadbalancer"];

/// Scenarios without a test, and why.
const WITHOUT_TEST: [(&[u8], &str); 1] = [(&[57, 88], "no egress gateway")];

/// Returns the numbers behind the word in a text: single ones, lists and ranges.
fn numbers(text: &str) -> BTreeSet<u8> {
    let lower = text.to_lowercase();
    let mut found = BTreeSet::new();
    for (at, word) in lower.match_indices("scenario") {
        let rest = lower[at + word.len()..].strip_prefix('s').unwrap_or(&lower[at + word.len()..]);
        let mut last = None;
        let mut is_range = false;
        for word in rest.split_whitespace() {
            let (number, ends) = match word.trim_end_matches([',', '.', ':', ';']).parse::<u8>() {
                Ok(number) => (number, word.ends_with(['.', ':', ';'])),
                Err(_) if word == "and" => continue,
                Err(_) if word == "to" && last.is_some() => {
                    is_range = true;
                    continue;
                }
                Err(_) => break,
            };
            found.extend(if is_range { last.unwrap_or(number)..=number } else { number..=number });
            (last, is_range) = (Some(number), false);
            if ends {
                break;
            }
        }
    }
    found
}

#[test]
fn lists_and_ranges_are_read() {
    let text = "/// Scenarios 3 to 5 for a backend. Scenario 7, and 9 more. scenarios 10, 12 and 14: x 15";
    assert_eq!(numbers(text), [3, 4, 5, 7, 9, 10, 12, 14].into());
    assert_eq!(numbers("a scenario of 8"), BTreeSet::new());
}

#[test]
fn every_scenario_of_services_is_named_by_a_test() {
    let mut named = BTreeSet::new();
    for file in crate::rust_files(&FOLDERS, &["target"]) {
        let text = fs::read_to_string(&file).unwrap();
        if text.contains("#[test]") {
            named.extend(numbers(&text));
        }
    }
    let without: BTreeSet<u8> = WITHOUT_TEST.iter().flat_map(|(numbers, _)| *numbers).copied().collect();
    let both: Vec<&u8> = named.intersection(&without).collect();
    assert!(both.is_empty(), "named by a test, and in the list of those without one: {both:?}");
    let missing: Vec<u8> = (1..=SCENARIOS).filter(|n| !named.contains(n) && !without.contains(n)).collect();
    assert!(missing.is_empty(), "no test names these scenarios: {missing:?}");
}
