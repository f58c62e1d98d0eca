//! CustomResourceDefinitions.

use serde_json::{Map, Value};

use crate::slim::slim;
use crate::{ObjectMeta, resource::resource};

slim! {
    /// The definition of a kind. Spec and status are kept as the server has them, to be compared and replaced whole.
    pub struct CustomResourceDefinition {
        /// Name, labels and so on.
        always pub metadata: ObjectMeta,
        /// Names, scope and versions.
        pub spec: Option<Map<String, Value>>,
        /// Accepted names, conditions and stored versions.
        pub status: Option<Map<String, Value>>,
    }
}

resource!(CustomResourceDefinition);
