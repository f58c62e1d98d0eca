//! A future that is not `Send`: the compiler points at the value and the await.
//~ future cannot be sent between threads safely
//~ has type `Rc<u64>` which is not `Send`
//~ await occurs here
use std::rc::Rc;
use std::sync::Arc;

use hive::prelude::*;

async fn new_number() -> Arc<u64> {
    let number = Rc::new(7);
    std::future::ready(()).await;
    Arc::new(*number)
}

fn main() {
    provide(new_number);
}
