//! A hook whose future is not `Send`, and one that borrows: the compiler points at the value and the await.
//~ future cannot be sent between threads safely
//~ has type `Rc<u64>` which is not `Send`
//~ await occurs here
//~ `name` does not live long enough
use std::rc::Rc;

use hive::prelude::*;

fn waits(lifecycle: Lifecycle) {
    lifecycle.hook("waits").on_start(|_| async {
        let number = Rc::new(7_u64);
        std::future::ready(()).await;
        drop(number);
        Ok(())
    }).add();
}

fn borrows(lifecycle: Lifecycle) {
    let name = String::from("eth0");
    let name: &str = &name;
    lifecycle.hook("borrows").on_start(move |_| async move {
        println!("{name}");
        Ok(())
    }).add();
}

fn main() {
    invoke(waits);
    invoke(borrows);
}
