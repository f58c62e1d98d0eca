//! The storage under the tables: persistent radix trees whose memory is reclaimed by lists of versions.
//!
//! # Trees
//! An index is a [`Tree`]: an adaptive radix tree over the bytes of the keys. Inner nodes hold 4, 16, 48 or 256 links
//! (`node.rs`), up to 20 bytes that all keys below have in common, and the one leaf whose key ends at the node. A
//! [`Link`](link::Link) is one pointer: to a node (low bit set), a leaf (low bit clear), or null.
//!
//! A leaf is an owned handle of one pointer ([`Leaf`](leaf::Leaf)). That of the primary index is the row's [`Obj`](crate::Obj)
//! itself, so that a link's memory *is* the `&Obj<T>` that readers get, and the key is made from the row. The leaf of
//! a secondary index ([`Keyed`]) has its key and a count of its row inside. The index by revision
//! ([`Revisions`]) is a trie over the bits of the number and holds an [`Alias`] of the row, which is not counted: what has
//! a revision is in both or in none.
//!
//! # Writing
//! A table has one writer at a time, holding the table's lock. It works on a copy of the last version's roots with an
//! [`Edit`], whose `birth` is the number of the last published root plus one. Each node and leaf carries the birth of
//! the edit that made it. A node of the same birth is changed in place, since nothing else can reach it; any other is
//! copied first, and the original goes to the edit's list of what the version to come will not use any more. Nothing
//! published is ever written to, except watches. No node counts its references: copying a node of 256 links touches
//! that node and nothing else.
//!
//! # Publishing and reading
//! [`Roots`] holds the published roots (for each table its version), numbered one by one. A reader takes the current
//! one by counting itself on the root's slot and looking whether it is still the current one; slots are reused, never
//! freed while readers can come, which makes that safe. A held root keeps everything reachable from it.
//!
//! # Freeing
//! Roots that are held, and the current one, are in one list by number. What a commit has put out of use hangs on the
//! root before it: the newest from which it can be reached. When a root is let go, what hangs on it and was born
//! after the root before is freed, since no older root can reach it; the rest goes on to hang on the root before. So
//! memory is as precise as with reference counts, at the price of one short lock a commit. Freed is outside of locks, and by
//! writers: a reader that is the last to hold a root leaves it, by one compare-and-swap, to a transaction that is under way,
//! which lets it go when it ends. Only where nobody writes the reader does it itself.
//! A transaction that is dropped frees what carries its birth. The last handle of the database puts everything that
//! is left out of use; held snapshots keep what they need.
//!
//! # Threads
//! Trees are `Send` and `Sync` when their leaves are: readers only read what is immutable, and the change from
//! "private to the writer" to "published" goes through the root's lock and pointer.

mod counted;
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
