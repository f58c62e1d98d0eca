//! A hook's closure that captures a value that is not `Send`, and one that returns no result.
//~ `Rc<u64>` cannot be sent between threads safely
//~ required by a bound in `HookBuilder::on_start`
//~ expected `Result<(), Error>`, found `()`
use std::rc::Rc;

use hive::prelude::*;

fn holds(lifecycle: Lifecycle) {
    let number = Rc::new(7_u64);
    lifecycle.hook("holds").on_start(move |_| {
        drop(number);
        async { Ok(()) }
    }).add();
}

fn gives_nothing(lifecycle: Lifecycle) {
    lifecycle.hook("nothing").on_stop(|_| async {}).add();
}

fn main() {
    invoke(holds);
    invoke(gives_nothing);
}
