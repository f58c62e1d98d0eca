//! Objects that cannot be shared between threads, and a trait without `Send + Sync`.
//~ `std::cell::Cell<u64>` cannot be shared between threads safely
//~ struct Counter(
//~ `(dyn Plain + 'static)` cannot be shared by cells, which run on several threads
//~ a trait says so by `trait Name: Send + Sync`
//~ required for `Arc<(dyn Plain + 'static)>` to implement `Param`
use std::sync::Arc;

use hive::prelude::*;

trait Plain {}

#[derive(Object)]
struct Counter(std::cell::Cell<u64>);

fn new_counter() -> Counter {
    Counter(std::cell::Cell::new(0))
}

fn takes(_: Arc<dyn Plain>) {}

fn main() {
    provide(new_counter);
    invoke(takes);
}
