//! ConfigMaps.

use crate::slim::slim;
use crate::{ObjectMeta, StringMap, resource::resource};

slim! {
    /// Settings by name.
    pub struct ConfigMap {
        /// Name, labels and so on.
        always pub metadata: ObjectMeta,
        /// Whether the data cannot be changed.
        pub immutable: Option<bool>,
        /// The settings.
        pub data: StringMap,
        /// Settings that are no text, in base64.
        pub binary_data: StringMap,
    }
}

resource!(ConfigMap);
