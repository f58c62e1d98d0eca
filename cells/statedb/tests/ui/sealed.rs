//! Traits that only the library implements, so that it may add methods to them.

use statedb::{AsQuery, Query, ReadSource};

struct Other;

//~ the trait bound `Other: statedb::db::sealed::Versioned` is not satisfied
impl ReadSource for Other {}

//~ the trait bound `Other: statedb::query::sealed::Sealed` is not satisfied
impl AsQuery<u32> for Other {
    fn as_query(&self) -> &Query<u32> {
        unreachable!()
    }
}

fn main() {}
