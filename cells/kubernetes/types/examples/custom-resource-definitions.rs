//! Writes the CustomResourceDefinitions of `cilium.io` to `config/crds`, and removes other files from that folder.

use std::path::Path;
use std::{fs, io};

fn main() -> io::Result<()> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../config/crds");
    let files = k8s_types::schema::custom_resource_definition_files();
    fs::create_dir_all(&folder)?;
    for entry in fs::read_dir(&folder)? {
        let entry = entry?;
        if files.iter().all(|(name, _)| entry.file_name() != name.as_str()) {
            fs::remove_file(entry.path())?;
        }
    }
    files.into_iter().try_for_each(|(name, content)| fs::write(folder.join(name), content))
}
