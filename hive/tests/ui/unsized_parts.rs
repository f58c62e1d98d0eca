//! Unsized types: traits and slices are taken and returned in an `Arc`.
//~ the size for values of type `(dyn Store + 'static)` cannot be known
//~ `Box<(dyn Store + 'static)>` cannot be a constructor parameter
//~ `Box<(dyn Store + 'static)>` cannot be the result of a constructor
//~ `&'static str` cannot be a constructor parameter
use hive::prelude::*;

trait Store: Send + Sync {}

fn members(_: Group<dyn Store>) {}

fn boxed(_: Box<dyn Store>) {}

fn gives_boxed() -> Box<dyn Store> {
    unimplemented!()
}

fn borrowed(_: &'static str) {}

fn main() {
    invoke(members);
    invoke(boxed);
    provide(gives_boxed);
    invoke(borrowed);
}
