//! More than 12 parameters: the message says to use a struct.
//~ is not a constructor
//~ at most 12 parameters; take a struct with `#[derive(Params)]` for more
use std::sync::Arc;

use hive::prelude::*;

type A = Arc<u8>;

fn new_api(_: A, _: A, _: A, _: A, _: A, _: A, _: A, _: A, _: A, _: A, _: A, _: A, _: A) {}

fn main() {
    provide(new_api);
}
