//! Namespaces.

use crate::ObjectMeta;
use crate::resource::resource;
use crate::slim::slim;

slim! {
    /// A namespace.
    pub struct Namespace {
        /// Name, labels and so on.
        always pub metadata: ObjectMeta,
    }
}

resource!(Namespace);
