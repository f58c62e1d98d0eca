//! Durations of the system calls, for an observer that needs them.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use crate::sys::Command;

/// A function that receives the operation of a call, whether it succeeded, and its duration.
type Observe = Box<dyn Fn(&'static str, bool, Duration) + Send + Sync>;

/// The observer of a process. System calls have no state of a cell to hold it.
static OBSERVER: OnceLock<Observer> = OnceLock::new();

struct Observer {
    wanted: Arc<AtomicBool>,
    observe: Observe,
}

/// Sets the function that receives each system call while `wanted` is true: its operation (`lookup`, `progLoad`), whether
/// it succeeded, and its duration. Returns false if the process has an observer already, which stays.
///
/// While `wanted` is false a call reads no clock.
pub fn observe_calls(
    wanted: Arc<AtomicBool>,
    observe: impl Fn(&'static str, bool, Duration) + Send + Sync + 'static,
) -> bool {
    OBSERVER.set(Observer { wanted, observe: Box::new(observe) }).is_ok()
}

/// Runs a system call, and reports it to the observer.
pub(crate) fn observed<T>(command: Command, call: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    match OBSERVER.get().filter(|observer| observer.wanted.load(Ordering::Relaxed)) {
        None => call(),
        Some(observer) => {
            let begin = Instant::now();
            let result = call();
            (observer.observe)(command.operation(), result.is_ok(), begin.elapsed());
            result
        }
    }
}
