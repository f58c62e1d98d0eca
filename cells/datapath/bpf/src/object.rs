//! Object files: parsed and linked by aya-obj, loaded here with maps that the caller opened.
#![expect(unsafe_code, reason = "loading takes pointers to instructions and type information")]

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use aya_obj::btf::BtfFeatures;
use aya_obj::generated::bpf_attach_type;
use aya_obj::{EbpfSectionKind, Function, Object, ProgramSection};
use parking_lot::Mutex;

use crate::error::{Error, Result};
use crate::prog::Program;
use crate::raw_map::{RawMap, UpdateMode};
use crate::spec::{Layout, MapFlags, MapSpec, MapType};
use crate::sys::{self, BtfLoadAttr, Command, ProgLoadAttr};

/// Size of the verifier's log buffer when a rejected program is loaded again.
const LOG_BYTES: usize = 4 << 20;
/// Number of log lines in an error.
const LOG_LINES: usize = 24;

/// A parsed object file, not loaded into the kernel.
#[derive(Clone, Debug)]
pub struct ObjectFile {
    name: String,
    object: Object,
}

/// The programs of an object, loaded, with the maps they use.
#[derive(Debug)]
pub struct Collection {
    /// Programs by the name of their function.
    pub programs: BTreeMap<String, Program>,
    /// The maps by name: duplicates of the caller's, and those created for this load.
    pub maps: BTreeMap<String, RawMap>,
}

impl Collection {
    /// Returns a program by its name.
    pub fn program(&self, name: &str) -> Result<&Program> {
        self.programs.get(name).ok_or_else(|| Error::Object {
            object: name.to_owned(),
            reason: format!(
                "no program of that name; there are {:?}",
                self.programs.keys().collect::<Vec<_>>()
            ),
        })
    }

    /// Returns a map by its name.
    pub fn map(&self, name: &str) -> Result<&RawMap> {
        self.maps.get(name).ok_or_else(|| Error::Object {
            object: name.to_owned(),
            reason: format!("no map of that name; there are {:?}", self.maps.keys().collect::<Vec<_>>()),
        })
    }
}

impl ObjectFile {
    /// Parses an object file, which must be aligned to 8 bytes. `name` is for messages.
    pub fn parse(name: &str, bytes: &[u8]) -> Result<ObjectFile> {
        let object = Object::parse(bytes)
            .map_err(|e| Error::Object { object: name.to_owned(), reason: e.to_string() })?;
        Ok(ObjectFile { name: name.to_owned(), object })
    }

    /// Returns the names of its programs, sorted.
    pub fn program_names(&self) -> Vec<String> {
        let mut names: Vec<String> = self.object.programs.keys().cloned().collect();
        names.sort();
        names
    }

    /// Returns the maps that it declares, without those of its global data.
    pub fn maps(&self) -> Vec<MapSpec> {
        let declared = self.object.maps.iter().filter(|(_, map)| map.data().is_empty() && !is_data(map));
        declared.map(|(name, map)| spec_of(name, map)).collect()
    }

    /// Sets a constant of `.rodata`; an unknown name or another size is an error.
    pub fn set_global(&mut self, name: &str, value: &[u8]) -> Result<()> {
        self.object
            .patch_map_data(HashMap::from([(name, (value, true))]))
            .map_err(|e| Error::Object { object: self.name.clone(), reason: format!("constant {name}: {e}") })
    }

    /// Leaves out programs that this node does not need.
    pub fn retain_programs(&mut self, mut keep: impl FnMut(&str) -> bool) {
        self.object.programs.retain(|name, _| keep(name));
    }

    /// Loads the programs, on `threads` threads at once.
    ///
    /// `maps` are used under their names where the object names them, and must have its type and sizes; the others are
    /// created unpinned. Programs load without a verifier log; a rejected one is loaded again with a log for the error.
    pub fn load(mut self, maps: &[(&str, &RawMap)], threads: usize) -> Result<Collection> {
        let btf = self.load_btf();
        let mut opened = BTreeMap::new();
        let declared: Vec<(String, aya_obj::Map)> = self.object.maps.drain().collect();
        for (name, map) in &declared {
            let raw = match maps.iter().find(|(n, _)| n == name) {
                Some((_, raw)) => {
                    self.check_layout(&spec_of(name, map), raw)?;
                    raw.try_clone()?
                }
                None if is_data(map) => create_data(name, map)?,
                None => RawMap::create(&spec_of(name, map))?,
            };
            opened.insert(name.clone(), raw);
        }
        let text: HashSet<usize> = self.object.functions.keys().map(|(section, _)| *section).collect();
        let fds = declared.iter().map(|(name, map)| (name.as_str(), opened[name].as_fd().as_raw_fd(), map));
        self.object.relocate_maps(fds, &text).map_err(|e| self.error(&e))?;
        self.object.relocate_calls(&text).map_err(|e| self.error(&e))?;
        let programs = self.load_programs(btf.as_ref(), threads.max(1))?;
        Ok(Collection { programs, maps: opened })
    }

    fn load_programs(&self, btf: Option<&OwnedFd>, threads: usize) -> Result<BTreeMap<String, Program>> {
        let mut work: Vec<(&String, &aya_obj::Program)> = self.object.programs.iter().collect();
        let instructions = |program: &aya_obj::Program| {
            self.object.functions.get(&program.function_key()).map_or(0, |f| f.instructions.len())
        };
        work.sort_by_key(|(_, program)| Reverse(instructions(program)));
        // The verifier's time and memory grow with the length of a program. One thread takes the longest program that
        // is left, the others the shortest: no long program comes last and keeps a single thread busy, and the two
        // longest are never verified at the same time, which a small limit of memory may not hold.
        let left = Mutex::new(&work[..]);
        let take = |longest: bool| {
            let mut left = left.lock();
            let (next, others) = if longest { left.split_first() } else { left.split_last() }?;
            *left = others;
            Some(next)
        };
        let worker = |longest: bool| {
            let mut done = Vec::new();
            while let Some((name, program)) = take(longest) {
                let function = self.object.functions.get(&program.function_key());
                let function = function.ok_or_else(|| self.error(&format!("program {name} has no code")))?;
                done.push(((*name).clone(), load_program(name, program, function, btf)?));
            }
            Ok(done)
        };
        let results: Vec<Result<Vec<(String, Program)>>> = std::thread::scope(|scope| {
            let others: Vec<_> =
                (1..threads.min(work.len())).map(|_| scope.spawn(|| worker(false))).collect();
            let mut results = vec![worker(true)];
            results.extend(
                others.into_iter().map(|t| t.join().unwrap_or_else(|e| std::panic::resume_unwind(e))),
            );
            results
        });
        let mut programs = BTreeMap::new();
        for result in results {
            programs.extend(result?);
        }
        Ok(programs)
    }

    /// Loads type information (BTF), which makes dumps readable and adds the source lines of objects that have them to
    /// logs; `None` if the kernel refuses it.
    fn load_btf(&mut self) -> Option<OwnedFd> {
        let newest = BtfFeatures::new(true, true, true, true, true, true, true, true);
        let linux_5_10 = BtfFeatures::new(true, true, true, true, false, false, false, false);
        for features in [newest, linux_5_10] {
            let mut object = self.object.clone();
            let Ok(Some(btf)) = object.fixup_and_sanitize_btf(&features) else { continue };
            let bytes = btf.to_bytes();
            let mut attr = BtfLoadAttr {
                btf: bytes.as_ptr() as u64,
                btf_size: bytes.len() as u32,
                ..BtfLoadAttr::default()
            };
            // JUSTIFICATION: the kernel reads the type information.
            // SAFETY: bytes lives across the call and has the length given.
            if let Ok(fd) = unsafe { sys::bpf_fd(Command::BtfLoad, &mut attr) } {
                self.object = object;
                return Some(fd);
            }
        }
        tracing::debug!(object = self.name, "The kernel takes no type information of this object");
        None
    }

    fn check_layout(&self, spec: &MapSpec, map: &RawMap) -> Result<()> {
        let (declared, found) = (spec.layout, map.layout());
        let same = |l: Layout| (l.map_type, l.key_size, l.value_size);
        if same(declared) == same(found) {
            return Ok(());
        }
        Err(self.error(&format!("map {} is {found}, the programs want {declared}", spec.name)))
    }

    fn error(&self, reason: &dyn std::fmt::Display) -> Error {
        Error::Object { object: self.name.clone(), reason: reason.to_string() }
    }
}

fn is_data(map: &aya_obj::Map) -> bool {
    use EbpfSectionKind::{Bss, Data, Rodata};
    matches!(map.section_kind(), Bss | Data | Rodata)
}

fn spec_of(name: &str, map: &aya_obj::Map) -> MapSpec {
    let layout = |map: &aya_obj::Map| Layout {
        map_type: MapType::from_number(map.map_type()),
        key_size: map.key_size(),
        value_size: map.value_size(),
        max_entries: map.max_entries(),
        flags: MapFlags(map.map_flags()),
    };
    // Names of data sections begin with a dot, which the kernel accepts in map names.
    MapSpec { name: name.to_owned().into(), layout: layout(map), inner: map.inner().as_ref().map(layout) }
}

/// Creates the map of global data: an array of one value, frozen when it is constant, so that the verifier removes code
/// that is switched off.
fn create_data(name: &str, map: &aya_obj::Map) -> Result<RawMap> {
    let mut spec = spec_of(name, map);
    let constant = map.section_kind() == EbpfSectionKind::Rodata;
    if constant {
        spec.layout.flags = spec.layout.flags.with(MapFlags::READ_ONLY_PROG);
    }
    let raw = RawMap::create(&spec)?;
    if map.section_kind() != EbpfSectionKind::Bss {
        raw.update(&0u32.to_ne_bytes(), map.data(), UpdateMode::Any)?;
    }
    if constant {
        raw.freeze()?;
    }
    Ok(raw)
}

fn load_program(
    name: &str,
    program: &aya_obj::Program,
    function: &Function,
    btf: Option<&OwnedFd>,
) -> Result<Program> {
    let Some((prog_type, attach_type)) = kind(&program.section) else {
        let reason = format!("program {name} is of a kind that is not loaded: {:?}", program.section);
        return Err(Error::Object { object: name.to_owned(), reason });
    };
    let func_info = function.func_info.func_info_bytes();
    let line_info = function.line_info.line_info_bytes();
    let mut attr = ProgLoadAttr {
        prog_type,
        expected_attach_type: attach_type,
        insn_cnt: function.instructions.len() as u32,
        insns: function.instructions.as_ptr() as u64,
        license: program.license.as_ptr() as u64,
        prog_name: sys::kernel_name(name),
        ..ProgLoadAttr::default()
    };
    if let Some(btf) = btf {
        attr.prog_btf_fd = btf.as_raw_fd() as u32;
        attr.func_info = func_info.as_ptr() as u64;
        attr.func_info_cnt = function.func_info.len() as u32;
        attr.func_info_rec_size = function.func_info_rec_size as u32;
        attr.line_info = line_info.as_ptr() as u64;
        attr.line_info_cnt = function.line_info.len() as u32;
        attr.line_info_rec_size = function.line_info_rec_size as u32;
    }
    // JUSTIFICATION: the kernel reads instructions, license and type information.
    // SAFETY: all buffers live across the call and have the given counts.
    let refused = match unsafe { sys::bpf_fd(Command::ProgLoad, &mut attr) } {
        Ok(fd) => return Ok(Program::from_fd(fd, name).with_attach_type(attach_type)),
        Err(e) => e,
    };
    let mut log = vec![0u8; LOG_BYTES];
    attr.log_level = 1;
    attr.log_size = log.len() as u32;
    attr.log_buf = log.as_mut_ptr() as u64;
    // JUSTIFICATION: as above, and the kernel writes the log.
    // SAFETY: as above; the log buffer has the given size and outlives the call.
    match unsafe { sys::bpf_fd(Command::ProgLoad, &mut attr) } {
        Ok(fd) => Ok(Program::from_fd(fd, name).with_attach_type(attach_type)),
        Err(_) => Err(Error::Verifier { program: name.to_owned(), log: log_end(&log), source: refused }),
    }
}

/// Returns the `enum bpf_prog_type` and `enum bpf_attach_type` of a section.
fn kind(section: &ProgramSection) -> Option<(u32, u32)> {
    match section {
        ProgramSection::SchedClassifier => Some((3, 0)),
        ProgramSection::Xdp { .. } => Some((6, 0)),
        ProgramSection::CgroupSock { attach_type } => Some((9, bpf_attach_type::from(*attach_type) as u32)),
        ProgramSection::CgroupSockAddr { attach_type } => {
            Some((18, bpf_attach_type::from(*attach_type) as u32))
        }
        _ => None,
    }
}

fn log_end(log: &[u8]) -> String {
    let text = String::from_utf8_lossy(log.split(|b| *b == 0).next().unwrap_or_default());
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(LOG_LINES)..].join("\n")
}

/// Loads a tc program from ready instructions: (end of the verifier's log, result).
pub(crate) fn load_instructions(name: &str, instructions: &[u64]) -> (String, io::Result<OwnedFd>) {
    let mut log = vec![0u8; 16384];
    let mut attr = ProgLoadAttr {
        prog_type: 3,
        insn_cnt: instructions.len() as u32,
        insns: instructions.as_ptr() as u64,
        license: c"Dual BSD/GPL".as_ptr() as u64,
        log_level: 1,
        log_size: log.len() as u32,
        log_buf: log.as_mut_ptr() as u64,
        prog_name: sys::kernel_name(name),
        ..ProgLoadAttr::default()
    };
    // JUSTIFICATION: as in load_program().
    // SAFETY: instructions are 8 bytes each; license and log live across the call.
    let result = unsafe { sys::bpf_fd(Command::ProgLoad, &mut attr) };
    (log_end(&log), result)
}
