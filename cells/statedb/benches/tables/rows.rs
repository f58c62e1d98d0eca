//! The measured tables.

use serde::Serialize;
use statedb::{Db, Index, IndexDef, RwTable, TableDisplay, TableSpec};

/// A row with only a number.
#[derive(Clone, Serialize)]
pub(crate) struct Plain {
    pub(crate) id: u64,
}

impl TableSpec for Plain {
    const NAME: &'static str = "plain";
    type Key<'a> = u64;

    fn key(&self) -> u64 {
        self.id
    }
}

impl TableDisplay for Plain {
    fn columns() -> &'static [&'static str] {
        &["ID"]
    }

    fn row(&self) -> Vec<String> {
        vec![self.id.to_string()]
    }
}

/// A row with a tag, shared by several rows.
#[derive(Clone, Serialize)]
pub(crate) struct Tagged {
    pub(crate) id: u64,
    pub(crate) tag: &'static str,
}

pub(crate) const BY_TAG: Index<Tagged, str> = Index::new("tag", |row, keys| keys.add(row.tag));
pub(crate) const TAGS: [&str; 10] =
    ["tag-0", "tag-1", "tag-2", "tag-3", "tag-4", "tag-5", "tag-6", "tag-7", "tag-8", "tag-9"];

pub(crate) fn tagged(id: u64) -> Tagged {
    Tagged { id, tag: TAGS[(id % 10) as usize] }
}

impl TableSpec for Tagged {
    const NAME: &'static str = "tagged";
    type Key<'a> = u64;

    fn key(&self) -> u64 {
        self.id
    }

    fn indexes() -> Vec<IndexDef<Self>> {
        vec![BY_TAG.def()]
    }
}

impl TableDisplay for Tagged {
    fn columns() -> &'static [&'static str] {
        &["ID", "Tag"]
    }

    fn row(&self) -> Vec<String> {
        vec![self.id.to_string(), self.tag.to_owned()]
    }
}

/// A row with a unique name.
#[derive(Clone, Serialize)]
pub(crate) struct Named {
    pub(crate) id: u64,
    pub(crate) name: String,
}

pub(crate) const BY_NAME: Index<Named, str> = Index::unique("name", |row, keys| keys.add(&row.name));

impl TableSpec for Named {
    const NAME: &'static str = "named";
    const UNIQUE_SECONDARY: bool = true;
    type Key<'a> = u64;

    fn key(&self) -> u64 {
        self.id
    }

    fn indexes() -> Vec<IndexDef<Self>> {
        vec![BY_NAME.def()]
    }
}

impl TableDisplay for Named {
    fn columns() -> &'static [&'static str] {
        &["ID", "Name"]
    }

    fn row(&self) -> Vec<String> {
        vec![self.id.to_string(), self.name.clone()]
    }
}

/// A row type of one of several similar tables.
#[derive(Clone, Serialize)]
struct Numbered<const I: usize> {
    id: u64,
}

impl<const I: usize> TableSpec for Numbered<I> {
    const NAME: &'static str = ["t0", "t1", "t2", "t3", "t4", "t5", "t6", "t7", "t8"][I];
    type Key<'a> = u64;

    fn key(&self) -> u64 {
        self.id
    }
}

impl<const I: usize> TableDisplay for Numbered<I> {
    fn columns() -> &'static [&'static str] {
        &["ID"]
    }

    fn row(&self) -> Vec<String> {
        vec![self.id.to_string()]
    }
}

/// Returns the last of ten tables. Each is a type: the hundred of Cilium's benchmark would take minutes to compile.
pub(crate) fn last_of_ten(db: &Db) -> RwTable<Plain> {
    macro_rules! register {
        ($($number:literal)+) => { $(db.table::<Numbered<$number>>().expect("a new name");)+ };
    }
    register!(0 1 2 3 4 5 6 7 8);
    db.table().expect("a new name")
}
