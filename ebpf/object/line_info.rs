//! Removes source lines from an object: more than half of its bytes, which each start of an agent would read, convert
//! and give to the kernel, and which only a verifier log shows.

/// Offsets and sizes of the fields of `Elf64_Ehdr` and `Elf64_Shdr`.
mod elf {
    pub(super) const SECTIONS_OFFSET: (usize, usize) = (0x28, 8);
    pub(super) const SECTION_SIZE: (usize, usize) = (0x3a, 2);
    pub(super) const SECTION_COUNT: (usize, usize) = (0x3c, 2);
    pub(super) const NAMES_INDEX: (usize, usize) = (0x3e, 2);
    pub(super) const NAME: (usize, usize) = (0, 4);
    pub(super) const OFFSET: (usize, usize) = (0x18, 8);
    pub(super) const SIZE: (usize, usize) = (0x20, 8);
}

/// Fields of `struct btf_ext_header` of the kernel's BTF documentation; offsets in it count from its end.
mod btf_ext {
    pub(super) const HEADER_SIZE: (usize, usize) = (4, 4);
    pub(super) const LINES_OFFSET: (usize, usize) = (16, 4);
    pub(super) const LINES_SIZE: (usize, usize) = (20, 4);
    /// Offset of relocations by types, of which there are none: they would follow the lines.
    pub(super) const RELOCATIONS_OFFSET: (usize, usize) = (24, 4);
}

/// Alignment of sections, the largest that the parser needs.
const ALIGN: usize = 8;

/// Returns the object without source lines; `None` if it is not laid out as expected: it has none, or something
/// follows them in their section.
pub(crate) fn remove(object: &[u8]) -> Option<Vec<u8>> {
    let sections = read(object, 0, elf::SECTIONS_OFFSET)?;
    let entry = read(object, 0, elf::SECTION_SIZE)?;
    let count = read(object, 0, elf::SECTION_COUNT)?;
    let names = read(object, sections + entry * read(object, 0, elf::NAMES_INDEX)?, elf::OFFSET)?;
    let mut headers = object.get(sections..sections + entry * count)?.to_vec();
    let mut stripped = object.get(..64)?.to_vec();
    let mut found = false;
    for at in (0..headers.len()).step_by(entry).skip(1) {
        let name = object.get(names + read(&headers, at, elf::NAME)?..)?;
        let (start, size) = (read(&headers, at, elf::OFFSET)?, read(&headers, at, elf::SIZE)?);
        let mut content = object.get(start..start + size)?.to_vec();
        if name.starts_with(b".BTF.ext\0") {
            let lines = read(&content, 0, btf_ext::HEADER_SIZE)? + read(&content, 0, btf_ext::LINES_OFFSET)?;
            if lines + read(&content, 0, btf_ext::LINES_SIZE)? != content.len() || lines == content.len() {
                return None;
            }
            content.truncate(lines);
            write(&mut content, 0, btf_ext::LINES_SIZE, 0)?;
            let lines_offset = read(&content, 0, btf_ext::LINES_OFFSET)?;
            write(&mut content, 0, btf_ext::RELOCATIONS_OFFSET, lines_offset)?;
            found = true;
        } else if name.starts_with(b".rel.BTF.ext\0") {
            content.clear();
        }
        stripped.resize(stripped.len().next_multiple_of(ALIGN), 0);
        write(&mut headers, at, elf::OFFSET, stripped.len())?;
        write(&mut headers, at, elf::SIZE, content.len())?;
        stripped.extend(content);
    }
    stripped.resize(stripped.len().next_multiple_of(ALIGN), 0);
    let end = stripped.len();
    write(&mut stripped, 0, elf::SECTIONS_OFFSET, end)?;
    stripped.extend(headers);
    found.then_some(stripped)
}

fn read(bytes: &[u8], base: usize, (offset, size): (usize, usize)) -> Option<usize> {
    let field = bytes.get(base + offset..base + offset + size)?;
    Some(field.iter().rev().fold(0, |value, byte| value << 8 | usize::from(*byte)))
}

fn write(bytes: &mut [u8], base: usize, (offset, size): (usize, usize), value: usize) -> Option<()> {
    let field = bytes.get_mut(base + offset..base + offset + size)?;
    field.copy_from_slice(&value.to_le_bytes()[..size]);
    Some(())
}
