//! Instructions and allocations of an operation.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::process::Command;

use integration_tests::costs;
use test_kit::{require, require_command};

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

/// The system's allocator, which counts the allocations of each thread.
struct Counting;

fn count() {
    ALLOCATIONS.set(ALLOCATIONS.get() + 1);
}

#[expect(unsafe_code, reason = "an allocator")]
// JUSTIFICATION: only an allocator sees each allocation.
// SAFETY: every call goes to the system's allocator with the caller's arguments, so its contract is upheld; counting
// neither allocates nor unwinds, because the thread-local counter has a constant initializer and no destructor.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // JUSTIFICATION: as above. SAFETY: as above.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, piece: *mut u8, layout: Layout) {
        // JUSTIFICATION: as above. SAFETY: as above.
        unsafe { System.dealloc(piece, layout) }
    }

    unsafe fn realloc(&self, piece: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // JUSTIFICATION: as above. SAFETY: as above.
        unsafe { System.realloc(piece, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Environment variable: number of rounds in the process under valgrind.
const ROUNDS: &str = "APIARY_COST_ROUNDS";
const FEW: u64 = 8;
const MANY: u64 = 40;

/// Counts the cost of one round: `work` prepares and runs the given number of rounds. Preparation costs the same for
/// few and for many rounds, so the difference is the cost of the additional rounds.
///
/// The test starts itself again in valgrind, which executes the same instructions on every processor; `test` is the
/// test's name.
pub(crate) fn check(operation: &str, test: &str, work: impl Fn(u64)) {
    if let Ok(rounds) = std::env::var(ROUNDS) {
        return work(rounds.parse().unwrap());
    }
    let allocations = |rounds| {
        let before = ALLOCATIONS.get();
        work(rounds);
        ALLOCATIONS.get() - before
    };
    // Initialization that happens once per process is done before.
    work(1);
    costs::check(operation, "allocations", each(allocations));
    require_command!("valgrind");
    let compiler = compiler();
    let is_recorded = compiler.starts_with(&format!("{} ", costs::compiler()));
    require!(is_recorded, "the recorded instructions are of {}, not of {compiler}", costs::compiler());
    costs::check(operation, "instructions", each(|rounds| instructions(test, rounds)));
}

/// Returns the version of the compiler of this machine, which has compiled the tests.
fn compiler() -> String {
    let output = Command::new("rustc").arg("--version").output().unwrap();
    String::from_utf8(output.stdout).unwrap().trim_end().to_owned()
}

/// Returns the cost of one round.
fn each(cost: impl Fn(u64) -> u64) -> u64 {
    let (few, many) = (cost(FEW), cost(MANY));
    (many - few) / (MANY - FEW)
}

/// Returns the instructions of a process that runs only this test, with this many rounds.
fn instructions(test: &str, rounds: u64) -> u64 {
    let output = Command::new("valgrind")
        .args(["--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", test, "--test-threads=1"])
        .env(ROUNDS, rounds.to_string())
        .output()
        .unwrap();
    let (out, report) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && out.contains("1 passed"), "{out}\n{report}");
    // `==1== I   refs:      1,234,567`, in later versions without the blanks.
    let line = report.lines().find(|line| line.contains(" I ") && line.contains("refs:"));
    let count = line.and_then(|line| line.rsplit(' ').next()).map(|count| count.replace(',', ""));
    count.and_then(|count| count.parse().ok()).unwrap_or_else(|| panic!("valgrind counts nothing:\n{report}"))
}
