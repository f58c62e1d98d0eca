//! A parameter that is not injectable: the compiler names it, not the function.
//~ `Pool` cannot be a constructor parameter
//~ inject `Arc<Pool>` (or `Arc<dyn Trait>`
//~ an `Arc` as it is, without `&`
//~ `ConfigWatch<T>`, `Group<T>`, `Option<..>`, `Arc<Scope<T>>`
use hive::prelude::*;

struct Pool;

fn new_api(_pool: Pool) {}

fn main() {
    provide(new_api);
}
