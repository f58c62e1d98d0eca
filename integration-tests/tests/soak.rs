//! The soak of `make soak`, as long as a check may take.

use integration_tests::soak::{Plan, Sample, growth, run};
use test_kit::{require_command, require_root};

#[global_allocator]
static ALLOCATOR: memory_limit::Counting = memory_limit::Counting;

#[test]
fn everything_is_as_it_was_after_many_pods_and_kills() {
    require_root!();
    require_command!("bpftool");
    require_command!("nft");
    a_real_leak_would_be_seen();
    let plan = Plan { seed: 20, cycles: 200, quiet_every: 50, samples: 1 };
    let mut lines = Vec::new();
    let report = match run(&plan, &mut |line| lines.push(line.to_owned())) {
        Ok(report) => report,
        Err(error) => panic!("seed {}:\n{}\n{error}", plan.seed, lines.join("\n")),
    };
    assert!(report.cycles >= plan.cycles, "{report:?}");
    assert!(report.compared >= plan.cycles / plan.quiet_every, "{report:?}");
    assert!(report.samples.len() == 1 && report.samples[0].allocated > 100_000, "{report:?}");
    // A run without kills proves nothing.
    assert!(report.killed_plugins >= 2 && report.killed_agents >= 1, "{report:?}");
}

/// Leaked memory shows in the allocator's count, freed memory does not. Not a test of its own: others that run in
/// the same process would be counted.
fn a_real_leak_would_be_seen() {
    let grows = |forgotten: usize| {
        let sample = |at: usize| {
            for cycle in 0..125 {
                drop((0..20).map(|pod| format!("pod {pod} of cycle {cycle}")).collect::<Vec<_>>());
                std::mem::forget(vec![1u8; forgotten]);
            }
            let allocated = memory_limit::allocated().expect("this process counts");
            Sample { cycles: at * 125, allocated, ..Sample::default() }
        };
        growth(&(0..40).map(sample).collect::<Vec<_>>())
    };
    assert_eq!(grows(0), None);
    assert!(grows(50).is_some());
}
