//! The soak of `make soak`, as long as a check may take.

use integration_tests::soak::{Plan, run};
use test_kit::{require_command, require_root};

#[test]
fn everything_is_as_it_was_after_many_pods_and_kills() {
    require_root!();
    require_command!("bpftool");
    require_command!("nft");
    let plan = Plan { seed: 20, cycles: 200, quiet_every: 50 };
    let mut lines = Vec::new();
    let report = match run(&plan, &mut |line| lines.push(line.to_owned())) {
        Ok(report) => report,
        Err(error) => panic!("seed {}:\n{}\n{error}", plan.seed, lines.join("\n")),
    };
    assert!(report.cycles >= plan.cycles, "{report:?}");
    assert!(report.compared >= plan.cycles / plan.quiet_every, "{report:?}");
    // A run that kills nobody proves nothing.
    assert!(report.killed_plugins >= 2 && report.killed_agents >= 1, "{report:?}");
}
