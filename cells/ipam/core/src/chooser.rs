//! The choice of a pool for each address, with `ipam=multi-pool`.

use std::fmt;
use std::sync::Arc;

use crate::error::Error;
use crate::range::Family;

/// Chooses pools, and learns of requests that a pool cannot serve.
pub trait ChoosePool: Send + Sync {
    /// Returns the pool of addresses of the node itself, and of pods without a choice.
    fn default_pool(&self) -> Arc<str>;

    /// Returns the pool for an owner.
    ///
    /// # Errors
    /// Objects that decide are not known yet, or contradict each other.
    fn choose(&self, owner: &str, family: Family) -> Result<Arc<str>, Error>;

    /// Whether addresses of a pool leave the cluster without masquerading.
    fn skips_masquerade(&self, pool: &str) -> bool;

    /// Records that an owner waits for an address of a pool without free ones.
    fn wait(&self, pool: &Arc<str>, family: Family, owner: &str);

    /// Records that an owner has its address.
    fn served(&self, pool: &Arc<str>, family: Family, owner: &str);
}

/// A cell's [`ChoosePool`], as a member of a group; without a member all addresses are of one pool.
#[derive(Clone)]
pub struct Chooser(Arc<dyn ChoosePool>);

impl Chooser {
    /// Returns the member.
    pub fn new(choose: Arc<dyn ChoosePool>) -> Chooser {
        Chooser(choose)
    }
}

impl std::ops::Deref for Chooser {
    type Target = dyn ChoosePool;

    fn deref(&self) -> &Self::Target {
        &*self.0
    }
}

impl fmt::Debug for Chooser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Chooser")
    }
}
