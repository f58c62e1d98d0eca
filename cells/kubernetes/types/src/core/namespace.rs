//! Namespaces.

use crate::ObjectMeta;
use crate::resource::resource;
use crate::slim::slim;

slim! {
    /// A namespace.
    pub struct Namespace {
        /// Standard object metadata.
        always pub metadata: ObjectMeta,
    }
}

resource!(Namespace);
