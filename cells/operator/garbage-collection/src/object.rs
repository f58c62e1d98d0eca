//! Rows of objects that may be collected.

use k8s_tables::{Projected, Projection, Resource as _, Row, Tabled};
use k8s_types::{Key, Kind, SmolStr};
use operator_objects::{Endpoint, Pod, Uid};
use statedb::{Query, TableSpec};

/// A row of an object, whole or in part.
pub(crate) trait Object: TableSpec {
    const KIND: Kind;

    /// Queries the object of this name.
    fn by_key(key: &Key) -> Query<Self>;

    fn key_and_uid(&self) -> (Key, SmolStr);
}

impl<T: Tabled> Object for Row<T> {
    const KIND: Kind = T::KIND;

    fn by_key(key: &Key) -> Query<Self> {
        Row::by_key(key)
    }

    fn key_and_uid(&self) -> (Key, SmolStr) {
        let metadata = self.object.metadata();
        (Key::new(metadata.namespace.clone(), metadata.name.clone()), metadata.uid.clone())
    }
}

/// A part of an object that has its uid.
pub(crate) trait Part: Projection {
    fn uid(&self) -> &Uid;
}

impl Part for Pod {
    fn uid(&self) -> &Uid {
        &self.uid
    }
}

impl Part for Endpoint {
    fn uid(&self) -> &Uid {
        &self.uid
    }
}

impl<P: Part> Object for Projected<P> {
    const KIND: Kind = P::Object::KIND;

    fn by_key(key: &Key) -> Query<Self> {
        Projected::by_key(key)
    }

    fn key_and_uid(&self) -> (Key, SmolStr) {
        (Key::new(self.namespace(), self.name()), self.uid().into())
    }
}
