//! `make soak`: pods come and go 10,000 times, agent and plugin are killed meanwhile, nothing leaks and nothing grows.
//! Variables: `COUNT` of cycles; `SEED`, printed at the start; `QUIET`, the cycles between two comparisons.

use std::process::ExitCode;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use integration_tests::soak::{Plan, run};

/// Enough to see a rise of some bytes a cycle; nine minutes.
const SAMPLES: usize = 18;

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

#[expect(clippy::print_stdout, reason = "a command prints what it does")]
fn main() -> ExitCode {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |time| time.as_secs());
    let cycles = number("COUNT").unwrap_or(10_000) as usize;
    let plan = Plan {
        seed: number("SEED").unwrap_or(now),
        cycles,
        quiet_every: number("QUIET").map_or((cycles / 80).max(20), |cycles| cycles.max(1) as usize),
        samples: SAMPLES,
    };
    println!("SEED={} COUNT={} QUIET={}", plan.seed, plan.cycles, plan.quiet_every);
    let begin = Instant::now();
    match run(&plan, &mut |line| println!("{:6.0} s  {line}", begin.elapsed().as_secs_f64())) {
        Ok(report) => {
            println!(
                "{} cycles in {:.0} s, {} plugins and {} agents killed, compared {} times: nothing leaked, nothing grows",
                report.cycles,
                begin.elapsed().as_secs_f64(),
                report.killed_plugins,
                report.killed_agents,
                report.compared
            );
            ExitCode::SUCCESS
        }
        Err(error) => {
            println!("SEED={}: {error}", plan.seed);
            ExitCode::FAILURE
        }
    }
}
