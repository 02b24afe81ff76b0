//! The initial file system of a machine, as a cpio archive of the "newc"
//! format (Linux, Documentation/driver-api/early-userspace/buffer-format.rst).
//!
//! The same parts always give the same bytes: no time, no owner, no order of a
//! directory gets in.

/// Header of an entry: six digits of magic and thirteen fields of eight.
const MAGIC: &str = "070701";
const TRAILER: &str = "TRAILER!!!";
const DIRECTORY: u32 = 0o040_000;
const REGULAR: u32 = 0o100_000;

/// Directories that the agent finds when it is a machine's first program: what
/// it mounts on, and its modules.
const DIRECTORIES: [&str; 5] = ["dev", "modules", "proc", "root", "sys"];

/// The program and the modules in the order in which they are loaded; the
/// agent finds them as `/modules/00.ko` and so on.
pub fn archive(agent: &[u8], modules: &[Vec<u8>]) -> Vec<u8> {
    let mut archive = Archive::default();
    for name in DIRECTORIES {
        archive.add(name, DIRECTORY | 0o755, &[]);
    }
    archive.add("init", REGULAR | 0o755, agent);
    for (number, module) in modules.iter().enumerate() {
        archive.add(&format!("modules/{number:02}.ko"), REGULAR | 0o644, module);
    }
    archive.finish()
}

#[derive(Default)]
struct Archive {
    bytes: Vec<u8>,
    entries: usize,
}

impl Archive {
    fn add(&mut self, name: &str, mode: u32, content: &[u8]) {
        self.entries += 1;
        let links = 1;
        let (owner, group, time, device) = (0, 0, 0, 0);
        let fields = [
            self.entries,
            mode as usize,
            owner,
            group,
            links,
            time,
            content.len(),
            device,
            device,
            device,
            device,
            name.len() + 1,
            0,
        ];
        self.bytes.extend_from_slice(MAGIC.as_bytes());
        for field in fields {
            self.bytes
                .extend_from_slice(format!("{field:08x}").as_bytes());
        }
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        self.align();
        self.bytes.extend_from_slice(content);
        self.align();
    }

    fn align(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    fn finish(mut self) -> Vec<u8> {
        self.add(TRAILER, 0, &[]);
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_archive_is_what_cpio_reads() {
        let bytes = archive(b"agent", &[b"one".to_vec(), b"second".to_vec()]);
        assert_eq!(bytes.len() % 4, 0);
        let (mut rest, mut found) = (&bytes[..], Vec::new());
        loop {
            let field = |number: usize| {
                let start = 6 + number * 8;
                let text = str::from_utf8(&rest[start..start + 8]).unwrap();
                usize::from_str_radix(text, 16).unwrap()
            };
            assert_eq!(&rest[..6], MAGIC.as_bytes());
            let (mode, size, name) = (field(1), field(6), field(11));
            let name_of = str::from_utf8(&rest[110..110 + name - 1]).unwrap();
            if name_of == TRAILER {
                break;
            }
            let content = (110 + name).next_multiple_of(4);
            found.push((
                name_of.to_owned(),
                mode,
                rest[content..content + size].to_vec(),
            ));
            rest = &rest[(content + size).next_multiple_of(4)..];
        }
        let files: Vec<_> = found.iter().filter(|one| one.1 & 0o100_000 != 0).collect();
        assert_eq!(found.len(), DIRECTORIES.len() + 3);
        assert_eq!(files[0], &("init".to_owned(), 0o100_755, b"agent".to_vec()));
        assert_eq!(
            files[2],
            &("modules/01.ko".to_owned(), 0o100_644, b"second".to_vec())
        );
    }

    #[test]
    fn the_same_parts_give_the_same_bytes() {
        let modules = [vec![1, 2, 3]];
        assert_eq!(archive(b"agent", &modules), archive(b"agent", &modules));
        assert_ne!(archive(b"agent", &modules), archive(b"other", &modules));
    }
}
