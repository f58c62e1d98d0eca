//! A parameter that is not injectable: the compiler names it, not the function.
//~ `Pool` cannot be a constructor parameter
//~ inject `Arc<Pool>` (or `Arc<dyn Trait>`)
use hive::prelude::*;

struct Pool;

fn new_api(_pool: Pool) {}

fn main() {
    provide(new_api);
}
