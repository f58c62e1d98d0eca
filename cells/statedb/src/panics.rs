//! Execution of all steps of a sequence although foreign code (wakers, metrics, destructors of rows) panics in some.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// The first panic of a sequence of steps.
#[derive(Default)]
#[must_use = "a panic is resumed or lost"]
pub(crate) struct Panics(Option<Box<dyn Any + Send>>);

impl Panics {
    /// Runs a step; returns whether it completed without a panic.
    #[inline]
    pub(crate) fn run(&mut self, step: impl FnOnce()) -> bool {
        match catch_unwind(AssertUnwindSafe(step)) {
            Ok(()) => true,
            Err(panic) => {
                self.keep(panic);
                false
            }
        }
    }

    /// Runs a step for each item. Costs nothing per item: one `catch_unwind` covers all items, and another one the
    /// remaining items after a panic.
    #[inline]
    pub(crate) fn each<I>(&mut self, items: impl IntoIterator<Item = I>, mut step: impl FnMut(I)) {
        let mut items = items.into_iter();
        while !self.run(|| {
            for item in items.by_ref() {
                step(item);
            }
        }) {}
    }

    #[cold]
    fn keep(&mut self, panic: Box<dyn Any + Send>) {
        match &self.0 {
            None => self.0 = Some(panic),
            // The destructor of a panic payload is foreign code, too; if it panics, that second payload is leaked.
            Some(_) => std::mem::forget(catch_unwind(AssertUnwindSafe(|| drop(panic)))),
        }
    }

    /// Resumes the first panic, unless the thread is unwinding already: a panic during unwinding aborts the process.
    #[inline]
    pub(crate) fn resume(self) {
        if let Some(panic) = self.0
            && !std::thread::panicking()
        {
            resume_unwind(panic);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_items_are_run_and_the_first_panic_goes_on() {
        let mut seen = Vec::new();
        let mut panics = Panics::default();
        panics.each(0..5, |n| {
            seen.push(n);
            assert!(n % 2 == 0, "{n} is odd");
        });
        assert!(!panics.run(|| panic!("another")));
        assert!(panics.run(|| seen.push(9)));
        assert_eq!(seen, [0, 1, 2, 3, 4, 9]);
        let panic = catch_unwind(AssertUnwindSafe(|| panics.resume())).unwrap_err();
        assert_eq!(panic.downcast_ref::<String>().unwrap(), "1 is odd");
        Panics::default().resume();
    }
}
