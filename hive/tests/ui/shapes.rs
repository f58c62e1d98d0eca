//! A value that is no constructor, a condition on a type that is no configuration, a group member that is not `Clone`.
//~ `u64` is not a constructor
//~ `Pool` is not a configuration struct
//~ add `#[derive(hive::Config)]`
//~ `Pool: Clone` is not satisfied
//~ fn new_pool() -> Member<Pool> {
//~ required by a bound in `hive::Member`
use hive::prelude::*;

struct Pool;

fn new_pool() -> Member<Pool> {
    Member(Pool)
}

fn main() {
    provide(7_u64);
    module("m", "x", provide(new_pool)).when(|_: &Pool| true);
    config::<Pool>();
}
