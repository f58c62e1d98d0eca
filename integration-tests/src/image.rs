//! Container images as `tools/images` writes them, unpacked for a test.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// An image, unpacked into a folder.
#[derive(Clone, Debug)]
pub struct Image {
    /// Its name and tag.
    pub reference: String,
    /// Its files.
    pub root: PathBuf,
    /// The variables of its processes.
    pub environment: Vec<(String, String)>,
}

impl Image {
    /// Builds images with the binaries of the tests, into a folder. Returns what the tool prints.
    ///
    /// # Panics
    /// When the tool fails.
    pub fn build(options: &[&str], binaries: &Path, folder: &Path, names: &[&str]) -> String {
        let tool = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("tools/images");
        let output = Command::new(tool).args(options).arg(binaries).arg(folder).args(names).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Unpacks `NAME.tar` of a folder into the folder `NAME` beside it, as a runtime does: by the index, the manifest and the
    /// configuration, whose digests and sizes are checked.
    ///
    /// # Panics
    /// When the archive is not as the image specification of OCI has it.
    #[must_use]
    pub fn unpack(folder: &Path, name: &str) -> Image {
        let (archive, root) = (folder.join(format!("{name}.layout")), folder.join(name));
        for new in [&archive, &root] {
            fs::create_dir(new).unwrap();
        }
        extract(&folder.join(format!("{name}.tar")), &archive);
        let layout = json(&archive.join("oci-layout"));
        assert_eq!(layout["imageLayoutVersion"], "1.0.0");
        let index = json(&archive.join("index.json"));
        let [entry] = &index["manifests"].as_array().unwrap()[..] else {
            panic!("not one manifest: {index}")
        };
        let manifest = json(&blob(&archive, entry));
        let config = json(&blob(&archive, &manifest["config"]));
        let layers = manifest["layers"].as_array().unwrap();
        for (layer, diff_id) in layers.iter().zip(config["rootfs"]["diff_ids"].as_array().unwrap()) {
            assert_eq!(layer["digest"], *diff_id, "layers are not compressed");
            extract(&blob(&archive, layer), &root);
        }
        // What versions of Docker before 25 read instead.
        let docker = json(&archive.join("manifest.json"));
        let path = |descriptor: &Value| Value::from(relative(descriptor));
        assert_eq!(docker[0]["Config"], path(&manifest["config"]));
        assert_eq!(docker[0]["Layers"], layers.iter().map(path).collect::<Value>());
        let reference = docker[0]["RepoTags"][0].as_str().unwrap().to_owned();
        assert_eq!(
            entry["annotations"]["io.containerd.image.name"],
            format!("docker.io/library/{reference}").as_str()
        );
        fs::remove_dir_all(&archive).unwrap();
        let environment = config["config"]["Env"].as_array().unwrap().iter();
        let environment = environment
            .map(|pair| pair.as_str().unwrap().split_once('=').unwrap())
            .map(|(name, value)| (name.to_owned(), value.to_owned()));
        Image { reference, root, environment: environment.collect() }
    }
}

fn extract(archive: &Path, folder: &Path) {
    let mut command = Command::new("tar");
    command.arg("-xf").arg(archive).arg("-C").arg(folder).arg("--keep-directory-symlink");
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

fn json(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

fn relative(descriptor: &Value) -> String {
    format!("blobs/{}", descriptor["digest"].as_str().unwrap().replace(':', "/"))
}

/// Returns the path of a blob, whose content is what its descriptor says.
fn blob(archive: &Path, descriptor: &Value) -> PathBuf {
    let path = archive.join(relative(descriptor));
    assert_eq!(descriptor["size"], fs::metadata(&path).unwrap().len(), "{descriptor}");
    let output = Command::new("sha256sum").arg(&path).output().unwrap();
    let digest = String::from_utf8(output.stdout).unwrap();
    assert!(relative(descriptor).ends_with(digest.split(' ').next().unwrap()), "{descriptor} is {digest}");
    path
}
