//! Costs of hot paths that are counted, not timed, and so are the same on a busy machine: held against `costs.tsv`.

use std::io::Write as _;

const RECORD: &str = include_str!("../costs.tsv");

/// Prints what an operation has cost, as a row of the table that `tools/bench` makes, with its change against the record.
///
/// # Panics
/// When it is not in the record, or more than a tenth above it.
#[track_caller]
pub fn check(operation: &str, unit: &str, measured: u64) {
    let recorded = recorded(operation, unit)
        .unwrap_or_else(|| panic!("costs.tsv has no row for {operation} in {unit}: {measured} were counted"));
    let limit = limit(unit, recorded);
    let met = if measured <= limit { "yes" } else { "no" };
    let change = change(recorded, measured);
    // Not captured by the test harness: the output shows how far each cost is from its limit.
    let mut out = std::io::stdout();
    let _ = writeln!(out, "costs: {operation}\t{measured}\t{unit}\t{limit}\t{met}\t{change}");
    assert!(
        measured <= limit,
        "{operation}: {measured} {unit}, {recorded} are recorded: a commit that needs them renews the row of \
         integration-tests/costs.tsv and says why"
    );
}

/// Whether [`check`] accepts this cost.
#[must_use]
pub fn accepts(operation: &str, unit: &str, measured: u64) -> bool {
    recorded(operation, unit).is_some_and(|recorded| measured <= limit(unit, recorded))
}

/// Returns the change of the size of a binary that ships against the record; `None` if it is not in the record.
#[must_use]
pub fn size_change(binary: &str, bytes: u64) -> Option<String> {
    Some(change(recorded(binary, "bytes")?, bytes))
}

fn change(recorded: u64, measured: u64) -> String {
    let change = (measured as f64 - recorded as f64) / recorded.max(1) as f64 * 100.0;
    format!("{change:+.1} % of the record")
}

/// The compiler, as it names itself, of which the recorded instructions are.
#[must_use]
pub fn compiler() -> &'static str {
    let line = RECORD.lines().find_map(|line| line.strip_prefix("# compiler\t"));
    line.expect("costs.tsv names the compiler")
}

/// Units of a single-threaded computation, which are the same in each run.
const EXACT: [&str; 2] = ["allocations", "instructions"];
/// Allowance of small counts of the whole agent, at most half of them: two jobs that run at the same time share a write or a dump, on a slow machine
/// each does its own.
const UNCOALESCED: u64 = 4;

/// Returns the limit of a count: a tenth above the record, and at least one, or [`UNCOALESCED`] for counts of the whole agent.
fn limit(unit: &str, recorded: u64) -> u64 {
    let allowance = if EXACT.contains(&unit) { 1 } else { UNCOALESCED.min(recorded / 2).max(1) };
    recorded + (recorded / 10).max(allowance)
}

/// A cost of the record.
fn recorded(operation: &str, unit: &str) -> Option<u64> {
    let rows = RECORD.lines().filter(|line| !line.starts_with('#'));
    rows.filter_map(|line| line.split('\t').collect::<Vec<_>>().try_into().ok()).find_map(
        |[name, of, value]: [&str; 3]| (name == operation && of == unit).then(|| value.parse().unwrap()),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cost_over_a_tenth_above_the_record_is_refused() {
        assert_eq!([0, 9, 100].map(|count| limit("allocations", count)), [1, 10, 110]);
        assert_eq!([0, 4, 9, 100].map(|count| limit("writes", count)), [1, 6, 13, 110]);
        let limit = limit("writes", recorded("endpoint created", "writes").unwrap());
        check("endpoint created", "writes", limit);
        assert!(accepts("endpoint created", "writes", limit));
        for (operation, unit, measured) in [
            ("endpoint created", "writes", limit + 1),
            ("endpoint created", "sighs", 1),
            ("nothing", "writes", 1),
        ] {
            let refused = std::panic::catch_unwind(|| check(operation, unit, measured));
            assert!(refused.is_err(), "{operation} {unit}");
            assert!(!accepts(operation, unit, measured));
        }
    }

    #[test]
    fn a_binary_is_compared_with_the_record() {
        let bytes = recorded("agent binary", "bytes").unwrap();
        assert_eq!(size_change("agent binary", bytes + bytes / 20).unwrap(), "+5.0 % of the record");
        assert_eq!(size_change("no binary", bytes), None);
    }

    #[test]
    fn every_row_of_the_record_is_a_cost() {
        for line in RECORD.lines().filter(|line| !line.starts_with('#')) {
            let fields: Vec<&str> = line.split('\t').collect();
            let [operation, unit, value] = fields[..] else { panic!("{line}") };
            assert_eq!(
                recorded(operation, unit),
                value.parse().ok(),
                "{line} is there twice or is no number"
            );
        }
    }
}
