//! Tests of counted pointers with threads of the operating system; `tests/loom/counted.rs` models their protocol.

use std::sync::Arc;

use super::Counted;

#[test]
fn the_last_owner_drops_the_value_on_any_thread() {
    let value = Arc::new(());
    let first = Counted::new(value.clone());
    assert_eq!(size_of_val(&first), size_of::<usize>());
    std::thread::scope(|scope| {
        for _ in 0..4 {
            let mine = first.clone();
            assert_eq!(mine.addr(), first.addr());
            scope.spawn(move || (0..1000).for_each(|_| drop(mine.clone())));
        }
    });
    assert_eq!(Arc::strong_count(&value), 2);
    drop(first);
    assert_eq!(Arc::strong_count(&value), 1);
}
