//! Rows with a part of each object, for readers that need no more of it.

use std::fmt::Debug;
use std::ops::Deref;
use std::sync::Arc;

use serde::{Serialize, Serializer};
use statedb::{KeyBuf, Prefix, Query, TableDisplay, TableSpec};

use k8s_types::{Key, Kind, Refusal};

use crate::events::Origin;
use crate::pool::Pool;
use crate::row::{Reflected, Tabled, name_of};

/// A part of the objects of a kind. It is made of each object as soon as that is decoded, so that the rest takes no memory.
pub trait Projection:
    From<Self::Object> + Clone + Debug + PartialEq + Serialize + Send + Sync + 'static
{
    /// The type of the objects.
    type Object: Tabled;

    /// Returns the namespace; empty for cluster-scoped kinds.
    fn namespace(&self) -> &str;

    /// Returns the name.
    fn name(&self) -> &str;

    /// Headings of the columns. The first is `Name`.
    fn columns() -> &'static [&'static str];

    /// Returns the row as the shell prints it, one text for each column.
    fn cells(&self) -> Vec<String>;

    /// Interns strings that many objects share.
    fn share(&mut self, _pool: &mut Pool) {}
}

/// A row of a table of [projections](Projection), which has the name of the table of the whole objects. Dereferences to the
/// projection.
#[derive(Debug, Clone, PartialEq)]
pub struct Projected<P> {
    part: P,
    source: Arc<str>,
}

impl<P> Deref for Projected<P> {
    type Target = P;

    fn deref(&self) -> &P {
        &self.part
    }
}

impl<P: Projection> Projected<P> {
    /// Queries the object of this name; the namespace is empty for cluster-scoped kinds.
    pub fn by_name(namespace: &str, name: &str) -> Query<Projected<P>> {
        Query::primary(name_of(namespace, name))
    }

    /// Queries the object of this name.
    pub fn by_key(key: &Key) -> Query<Projected<P>> {
        Projected::by_name(&key.namespace, &key.name)
    }

    /// Queries the objects of a namespace.
    pub fn in_namespace(namespace: &str) -> Prefix<Projected<P>> {
        Prefix::primary(&*format!("{namespace}/"))
    }

    pub(crate) fn part_mut(&mut self) -> &mut P {
        &mut self.part
    }
}

impl<P: Projection> TableSpec for Projected<P> {
    const NAME: &'static str = P::Object::TABLE;
    const PRIMARY: &'static str = "name";
    type Key<'a> = String;

    fn key(&self) -> String {
        name_of(self.part.namespace(), self.part.name())
    }
}

impl<P: Projection> TableDisplay for Projected<P> {
    fn columns() -> &'static [&'static str] {
        P::columns()
    }

    fn row(&self) -> Vec<String> {
        self.part.cells()
    }
}

impl<P: Projection> Serialize for Projected<P> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        self.part.serialize(to)
    }
}

impl<P: Projection> Reflected for Projected<P> {
    fn read(json: &[u8], from: &Origin) -> Result<Projected<P>, Refusal> {
        let object: P::Object = k8s_types::decode(json)?;
        Ok(Projected { part: object.into(), source: from.source.clone() })
    }

    fn share(&mut self, before: Option<&Projected<P>>, pool: &mut Pool) {
        if let Some(before) = before {
            // Interning a clone suffices: it shares the strings.
            before.part.clone().share(pool);
        }
        self.part.share(pool);
    }

    fn key_of(_: Kind, _: &str, key: &Key) -> KeyBuf {
        KeyBuf::of(&name_of(&key.namespace, &key.name))
    }

    fn is_of(&self, _: Kind, source: &str) -> bool {
        &*self.source == source
    }
}
