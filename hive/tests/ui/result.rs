//! A result that is not an object: the compiler names it.
//~ `Pool` cannot be the result of a constructor
//~ a type with `#[derive(Object)]`
use hive::prelude::*;

struct Pool;

fn new_pool() -> Pool {
    Pool
}

fn main() {
    provide(new_pool);
}
