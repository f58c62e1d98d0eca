//! The storage under the tables: persistent radix trees whose memory is reclaimed by lists of versions.
//!
//! # Trees
//! An index is a [`Tree`]: an adaptive radix tree over the bytes of the keys. Inner nodes hold 4, 16, 48 or 256 links
//! (`node.rs`), the common prefix of all keys below (up to 20 bytes), and the leaf of the key that ends at the node. A
//! [`Link`](link::Link) is one pointer: to a node (low bit set), a leaf (low bit clear), or null.
//!
//! A leaf is an owned handle of one pointer ([`Leaf`](leaf::Leaf)). A leaf of the primary index is the row's
//! [`Obj`](crate::Obj) itself: a link's memory *is* the `&Obj<T>` that readers get, and the key is derived from the
//! row. A leaf of a secondary index ([`Keyed`]) stores its key and a counted reference to its row. The revision index
//! ([`Revisions`]) is a trie over the bits of the revision and holds an [`Alias`] of the row, which is not counted:
//! a row is in both indexes or in neither.
//!
//! # Writing
//! A table has one writer at a time, holding the table's lock. It works on a copy of the last version's roots with an
//! [`Edit`], whose `birth` is the number of the last published root plus one. Each node and leaf carries the birth of
//! the edit that made it. A node of the same birth is changed in place, since nothing else can reach it; any other is
//! copied first, and the original is retired: it joins the edit's list of nodes that the next version does not use.
//! Published nodes are never written to, except for their watches. Nodes have no reference counts: copying a node of
//! 256 links touches that node and nothing else.
//!
//! # Publishing and reading
//! [`Roots`] holds the published roots (a version of each table), numbered consecutively. A reader acquires the current
//! root by incrementing the holder count of its slot and then checking that the slot is still the current one. This is
//! safe because slots are reused but not freed while readers can arrive. A held root keeps all nodes reachable from it.
//!
//! # Freeing
//! The held roots and the current one are in one list, ordered by number. The garbage of a commit is attached to the
//! previous root: the newest one that reaches it. When a root is released, the part of its garbage that was born after
//! the preceding live root is freed, since no older root can reach it; the rest is attached to that preceding root.
//! Memory is thus reclaimed as precisely as with reference counts, at the price of one short lock per commit.
//! Memory is freed outside of locks, and by writers if possible: a reader that is the last holder of a root hands it
//! over, by one compare-and-swap, to a transaction in flight, which releases it when it ends. The reader releases the
//! root itself only if no transaction is in flight.
//! An aborted transaction frees the nodes of its own birth. Dropping the last handle of the database retires all
//! remaining nodes; held snapshots keep the ones they reach.
//!
//! # Threads
//! Trees are `Send` and `Sync` when their leaves are: readers only read immutable nodes, and the transition from
//! "private to the writer" to "published" goes through the root's lock and pointer.

mod counted;
#[cfg(test)]
mod counted_tests;
mod heap;
mod leaf;
mod link;
mod node;
mod range;
mod revisions;
mod roots;
mod sync;
mod tree;

pub(crate) use counted::Counted;
pub(crate) use heap::{Edit, Fate, Retired, keep_list};
pub(crate) use leaf::{Alias, Grave, Keyed, Revisioned};
pub(crate) use range::Range;
pub(crate) use revisions::{RevisionRange, Revisions};
pub(crate) use roots::{Held, Root, Roots, Working};
pub(crate) use tree::Tree;
