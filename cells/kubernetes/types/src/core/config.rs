//! ConfigMaps.

use crate::slim::slim;
use crate::{ObjectMeta, StringMap, resource::resource};

slim! {
    /// Settings by name.
    pub struct ConfigMap {
        /// Standard object metadata.
        always pub metadata: ObjectMeta,
        /// Whether the data cannot be changed.
        pub immutable: Option<bool>,
        /// The settings.
        pub data: StringMap,
        /// Binary data in base64.
        pub binary_data: StringMap,
    }
}

resource!(ConfigMap);
