//! How maps were made to fit into the memory that the agent may use.

use std::fmt;

/// How maps were made to fit into the memory that the agent may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fit {
    /// Bytes that they may take.
    pub budget: u64,
    /// Bytes that they would take as the options want them.
    pub wanted: u64,
    /// Bytes that they take.
    pub taken: u64,
    /// The divisor of the sizes that no option sets.
    pub divisor: u32,
}

impl Fit {
    /// Whether they fit.
    pub fn fits(&self) -> bool {
        self.taken <= self.budget
    }
}

impl fmt::Display for Fit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        let Fit { budget, wanted, taken, divisor } = *self;
        write!(f, "{:.1} MiB of kernel memory, {:.1} may be used", mib(taken), mib(budget))?;
        if wanted > taken {
            let wanted = mib(wanted);
            write!(f, ", {wanted:.1} are wanted: rows are not allocated ahead, sizes are 1/{divisor}")?;
        }
        Ok(())
    }
}
