//! Secrets.

use smol_str::SmolStr;

use crate::slim::slim;
use crate::{ObjectMeta, StringMap, resource::resource};

slim! {
    /// Secret settings by name.
    pub struct Secret {
        /// Standard object metadata.
        always pub metadata: ObjectMeta,
        /// Whether the data cannot be changed.
        pub immutable: Option<bool>,
        /// The settings in base64.
        pub data: StringMap,
        /// Settings as plain text; a server merges them into the data and never returns them.
        pub string_data: StringMap,
        /// Its type: `Opaque`, `kubernetes.io/tls` and so on.
        pub r#type: SmolStr,
    }
}

resource!(Secret);
