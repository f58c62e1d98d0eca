//! Roots: held ones stay allocated, all others are freed.

#![expect(unsafe_code, reason = "looks at memory that the protocol guards")]

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use crate::engine::roots::{Garbage, Held, Root, Roots};
use crate::engine::sync::MAX_OWNERS;
use crate::*;
use loom::sync::atomic::{AtomicU64, Ordering};

/// A node of a tree. Loom reports a race between a read of `freed` and its write by `free`.
struct Node {
    number: u64,
    freed: loom::cell::UnsafeCell<bool>,
}

// SAFETY: loom checks all accesses of the cell.
unsafe impl Sync for Node {}
// SAFETY: as above.
unsafe impl Send for Node {}

#[derive(Clone)]
struct Tree(Option<Arc<Node>>);

struct Unused(Arc<Node>);

impl Garbage for Unused {
    fn birth(&self) -> u64 {
        self.0.number
    }

    unsafe fn free(self) {
        // SAFETY: loom fails the model if another thread accesses the cell concurrently.
        self.0.freed.with_mut(|freed| unsafe { assert!(!std::mem::replace(&mut *freed, true)) });
    }
}

impl Root for Tree {
    type Garbage = Unused;

    fn end(&mut self) -> Vec<Unused> {
        self.0.take().map(Unused).into_iter().collect()
    }
}

fn node(number: u64) -> Arc<Node> {
    Arc::new(Node { number, freed: loom::cell::UnsafeCell::new(false) })
}

fn read(held: &Held<Tree>) -> u64 {
    let node = held.root().0.as_ref().expect("a published tree");
    // SAFETY: held, so not freed, if the protocol is right.
    node.freed.with(|freed| assert!(unsafe { !*freed }, "freed while it is held"));
    assert_eq!(node.number, held.number());
    node.number
}

/// Replaces the node, like a commit.
fn write(roots: &Roots<Tree>, nodes: &mut Vec<Arc<Node>>) {
    let _working = roots.work();
    let new = node(nodes.len() as u64);
    nodes.push(new.clone());
    let mut old = None;
    let (now, before) = roots.publish(|tree| old = tree.0.replace(new));
    read(&now);
    before.retire(old.map(Unused).into_iter().collect());
}

fn world() -> (Arc<Roots<Tree>>, Vec<Arc<Node>>) {
    let first = node(0);
    (Arc::new(Roots::new(Tree(Some(first.clone())))), vec![first])
}

fn all_freed(nodes: &[Arc<Node>]) {
    for node in nodes {
        // SAFETY: all threads have been joined.
        node.freed.with(|freed| assert!(unsafe { *freed }, "never freed"));
    }
}

#[test]
fn a_held_root_stays_allocated_and_a_released_one_is_freed() {
    model(|| {
        let (roots, mut nodes) = world();
        let reader = {
            let roots = roots.clone();
            thread::spawn(move || read(&roots.current()))
        };
        write(&roots, &mut nodes);
        write(&roots, &mut nodes);
        reader.join().unwrap();
        drop(roots);
        all_freed(&nodes);
    });
}

/// Like a `Reader`: it keeps its root and acquires another one if its root is not current.
#[test]
fn a_reader_sees_all_roots_published_before() {
    model(|| {
        let (roots, mut nodes) = world();
        let published = Arc::new(AtomicU64::new(0));
        let reader = {
            let (roots, published) = (roots.clone(), published.clone());
            let mut held = roots.current();
            thread::spawn(move || {
                for _ in 0..2 {
                    let before = published.load(Ordering::Acquire);
                    if !held.is_current() {
                        held = roots.current();
                    }
                    assert!(read(&held) >= before);
                }
            })
        };
        for number in 1..=2 {
            write(&roots, &mut nodes);
            published.store(number, Ordering::Release);
        }
        reader.join().unwrap();
        drop(roots);
        all_freed(&nodes);
    });
}

#[test]
fn a_snapshot_outlives_the_roots() {
    model(|| {
        let (roots, mut nodes) = world();
        let held = roots.current();
        let reader = thread::spawn(move || {
            let second = held.clone();
            drop(held);
            read(&second);
        });
        write(&roots, &mut nodes);
        drop(roots);
        reader.join().unwrap();
        all_freed(&nodes);
    });
}

#[test]
fn readers_come_and_go_while_slots_are_used_again() {
    model(|| {
        let (roots, mut nodes) = world();
        let readers = [0; 2].map(|_| {
            let roots = roots.clone();
            thread::spawn(move || read(&roots.current()))
        });
        write(&roots, &mut nodes);
        for reader in readers {
            reader.join().unwrap();
        }
        drop(roots);
        all_freed(&nodes);
    });
}

/// In production the process aborts, long before the count could wrap around and free a held root.
#[test]
fn holders_that_leak_do_not_overflow_the_count() {
    type Count = fn(&Roots<Tree>, &Held<Tree>) -> Held<Tree>;
    let counts: [Count; 2] = [|roots, _| roots.current(), |_, held| held.clone()];
    for count in counts {
        model(move || {
            let (roots, _) = world();
            let held = roots.current();
            let leak = || (0..=MAX_OWNERS).for_each(|_| std::mem::forget(count(&roots, &held)));
            let panic = std::panic::catch_unwind(AssertUnwindSafe(leak)).expect_err("no limit");
            assert_eq!(panic.downcast_ref(), Some(&"too many owners"));
            assert_eq!(read(&held), 0);
        });
    }
}

/// Garbage that only the reader held is freed, whether the reader ends before, during or after a write.
#[test]
fn garbage_of_a_reader_is_freed_when_the_last_writer_ends() {
    model(|| {
        let (roots, mut nodes) = world();
        let held = roots.current();
        let reader = thread::spawn(move || read(&held));
        let other = {
            let roots = roots.clone();
            thread::spawn(move || drop(roots.work()))
        };
        write(&roots, &mut nodes);
        reader.join().unwrap();
        other.join().unwrap();
        all_freed(&nodes[..1]);
        drop(roots);
        all_freed(&nodes);
    });
}

/// The version of each of two tables.
#[derive(Clone)]
struct Tables([Arc<Node>; 2]);

impl Root for Tables {
    type Garbage = Unused;

    fn end(&mut self) -> Vec<Unused> {
        // The replacement nodes are never published.
        std::mem::replace(&mut self.0, [node(0), node(0)]).map(Unused).into_iter().collect()
    }
}

/// Replaces the version of one table and retires the previous one, like a commit. Returns the new node.
fn write_table(roots: &Roots<Tables>, table: usize, number: u64) -> Arc<Node> {
    let _working = roots.work();
    let new = node(number);
    let mut old = None;
    let (now, before) =
        roots.publish(|tables| old = Some(std::mem::replace(&mut tables.0[table], new.clone())));
    look_at_both(&now);
    drop(now);
    before.retire(old.map(Unused).into_iter().collect());
    new
}

fn look_at_both(held: &Held<Tables>) -> [u64; 2] {
    held.root().0.each_ref().map(|node| {
        // SAFETY: held, so not freed, if the protocol is right.
        node.freed.with(|freed| assert!(unsafe { !*freed }, "freed while it is held"));
        assert!(node.number <= held.number(), "born after the state that has it");
        node.number
    })
}

/// Transactions on different tables publish concurrently, with `reading` on a third thread. Both tables have the
/// written versions, and retired ones are freed exactly once, after the last root that reaches them is released,
/// whether they are retired in the order of publishing or not.
fn two_writers(preemptions: usize, reading: Option<fn(&Roots<Tables>)>) {
    bounded_model(preemptions, move || {
        let first = [node(0), node(0)];
        let roots = Arc::new(Roots::new(Tables(first.clone())));
        let other = {
            let roots = roots.clone();
            thread::spawn(move || write_table(&roots, 1, 1))
        };
        let reader = reading.map(|read| {
            let roots = roots.clone();
            thread::spawn(move || read(&roots))
        });
        let new = write_table(&roots, 0, 1);
        let other = other.join().unwrap();
        reader.into_iter().for_each(|reader| reader.join().unwrap());
        let last = roots.current();
        assert!(last.number() == 2 && Arc::ptr_eq(&last.root().0[0], &new));
        assert!(Arc::ptr_eq(&last.root().0[1], &other));
        drop(last);
        all_freed(&first);
        drop(roots);
        all_freed(&[new, other]);
    });
}

#[test]
fn writers_of_two_tables_publish_side_by_side() {
    two_writers(3, None);
}

/// Limited to two preemptions: with these three threads they take seconds, three would take minutes.
#[test]
fn a_reader_beside_writers_of_two_tables_sees_whole_states() {
    two_writers(
        2,
        Some(|roots| {
            let held = roots.current();
            let seen = look_at_both(&held).iter().sum::<u64>();
            assert_eq!(seen, held.number(), "a state has the writes of all before it");
        }),
    );
}
