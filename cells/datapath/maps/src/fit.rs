//! Sizing of the maps for a budget of kernel memory.

use std::fmt;

/// The sizes of all maps together, and how they were reduced to fit into the budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fit {
    /// Bytes of kernel memory that the maps may take.
    pub budget: u64,
    /// Bytes that the maps would take with the configured sizes and preallocation.
    pub wanted: u64,
    /// Bytes that the empty maps take after the reduction.
    pub taken: u64,
    /// The divisor applied to sizes that no option sets; 1 if they are unchanged.
    pub divisor: u32,
}

impl Fit {
    /// Whether the maps fit into the budget.
    pub fn fits(&self) -> bool {
        self.taken <= self.budget
    }
}

impl fmt::Display for Fit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        let Fit { budget, wanted, taken, divisor } = *self;
        write!(f, "{:.1} MiB of kernel memory, budget {:.1} MiB", mib(taken), mib(budget))?;
        if wanted > taken {
            let wanted = mib(wanted);
            write!(
                f,
                ", configured {wanted:.1} MiB: entries are not preallocated, sizes are divided by {divisor}"
            )?;
        }
        Ok(())
    }
}
