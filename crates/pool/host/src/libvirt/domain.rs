//! Guests as libvirt writes them: an operator's domain with our memory, nodes and modules put into it, and what libvirt says of
//! one that runs.

use std::fmt::Write as _;
use std::ops::Range;

use manager::api::Slice;
use roxmltree::{Document, Node};

use super::Settings;
use crate::driver::Machine;

/// By which a domain is known as ours: an element in its metadata.
const OURS: &str = "urn:thermocline:guest";
/// How often the balloon's driver in a guest is asked, in seconds.
const BALLOON_SECONDS: u32 = 2;
/// What the pool's node has before any slice, of local memory: libvirt has QEMU make memory for every cell, and QEMU makes none
/// of no size.
const LEAST_CELL: u64 = 4 << 20;

/// The alias of a slice's module; libvirt wants `ua-` in front of those that users give.
pub(super) fn alias(slice: &Slice) -> String {
    format!("ua-slice{}-{}", slice.emc, slice.index)
}

/// The domain to be started.
///
/// Of the operator's own, all that says how much memory there is and where goes: name, memory, cores, cells, modules, balloon.
/// Memory is memfds, of which the kernel tells what was touched.
///
/// # Errors
/// What is wrong with the operator's domain.
pub(super) fn written(machine: &Machine, settings: &Settings) -> Result<String, String> {
    let text = machine.domain.as_deref().ok_or("its file names no domain; give the XML of one: domain = \"guest.xml\"")?;
    let parsed = Document::parse(text).map_err(|error| format!("its domain is not XML: {error}"))?;
    let root = parsed.root_element();
    if !root.has_tag_name("domain") {
        return Err(format!("its domain is a <{}>; give a <domain>", root.tag_name().name()));
    }
    let mut edits = Edits { text, edits: Vec::new() };
    for gone in ["name", "uuid", "memory", "currentMemory", "maxMemory", "vcpu", "numatune", "memoryBacking"] {
        edits.cut(root, gone);
    }
    // Who made one from the XML of a guest of ours has it already.
    let mark = if is_ours(root) { String::new() } else { format!("<thermocline:guest xmlns:thermocline='{OURS}'/>\n") };
    let mut more = top(machine, settings);
    more += &edits.within(root, "metadata", &mark, &[]);
    // Modules are found by ACPI.
    more += &edits.within(root, "features", "<acpi/>\n", &["acpi"]);
    more += &edits.within(root, "cpu", &cells(machine, settings), &["numa"]);
    more += &edits.within(root, "devices", &devices(machine, settings), &["memory", "memballoon"]);
    edits.append(root, &more);
    Ok(edits.done())
}

/// What stands at the top of a domain.
fn top(machine: &Machine, settings: &Settings) -> String {
    let Machine { name, cores, slices, .. } = machine;
    let memory = (machine.local_bytes + machine.pool_bytes()) >> 10;
    let mut xml = format!("<name>{name}</name>\n<vcpu>{cores}</vcpu>\n<memory unit='KiB'>{memory}</memory>\n");
    if !slices.is_empty() {
        let _ = writeln!(xml, "<maxMemory slots='{}' unit='KiB'>{memory}</maxMemory>", slices.len());
    }
    if let Some(nodes) = &settings.local_nodes {
        let cells = if slices.is_empty() { 0..1 } else { 0..2 };
        let bound = cells.map(|cell| format!("<memnode cellid='{cell}' mode='strict' nodeset='{nodes}'/>")).collect::<String>();
        let _ = writeln!(xml, "<numatune>{bound}</numatune>");
    }
    xml += "<memoryBacking><source type='memfd'/><access mode='shared'/></memoryBacking>\n";
    xml
}

/// A cell with all cores and the local memory; with slices, another that has next to nothing of either.
fn cells(machine: &Machine, settings: &Settings) -> String {
    let last = machine.cores.saturating_sub(1);
    let cell = |id: u8, bytes: u64| format!("<cell id='{id}' memory='{}' unit='KiB'", bytes >> 10);
    if machine.slices.is_empty() {
        return format!("<numa>{} cpus='0-{last}'/></numa>\n", cell(0, machine.local_bytes));
    }
    let (first, second) = (cell(0, machine.local_bytes.saturating_sub(LEAST_CELL)), cell(1, LEAST_CELL));
    let distances = |own: u8, other: u8| {
        let far = settings.distance;
        format!("<distances><sibling id='{own}' value='10'/><sibling id='{other}' value='{far}'/></distances>")
    };
    let (near, far) = (distances(0, 1), distances(1, 0));
    format!("<numa>\n{first} cpus='0-{last}'>{near}</cell>\n{second}>{far}</cell>\n</numa>\n")
}

/// A module for each slice, of the pool's node, and the balloon.
fn devices(machine: &Machine, settings: &Settings) -> String {
    let mut xml = String::new();
    for slice in &machine.slices {
        let (alias, size, node) = (alias(slice), slice.bytes >> 10, settings.pool_node);
        let _ = writeln!(
            xml,
            "<memory model='dimm' access='shared'><alias name='{alias}'/><source><nodemask>{node}</nodemask></source>\
             <target><size unit='KiB'>{size}</size><node>1</node></target></memory>"
        );
    }
    if settings.balloon {
        let _ = writeln!(xml, "<memballoon model='virtio'><stats period='{BALLOON_SECONDS}'/></memballoon>");
    } else {
        xml += "<memballoon model='none'/>\n";
    }
    xml
}

/// Changes to a text, made all at once.
struct Edits<'a> {
    text: &'a str,
    edits: Vec<(Range<usize>, String)>,
}

impl Edits<'_> {
    /// Takes all children of that name out.
    fn cut(&mut self, parent: Node<'_, '_>, name: &str) {
        for child in parent.children().filter(|child| child.has_tag_name(name)) {
            self.edits.push((child.range(), String::new()));
        }
    }

    /// Puts `xml` at the end of the child `name`, without that one's own children named in `instead`. Where there is no such child,
    /// it is returned as it must be appended to its parent.
    fn within(&mut self, parent: Node<'_, '_>, name: &str, xml: &str, instead: &[&str]) -> String {
        let Some(child) = parent.children().find(|child| child.has_tag_name(name)) else {
            return format!("<{name}>\n{xml}</{name}>\n");
        };
        for gone in instead {
            self.cut(child, gone);
        }
        self.append(child, xml);
        String::new()
    }

    /// Puts `xml` at the end of an element. Once for each.
    fn append(&mut self, element: Node<'_, '_>, xml: &str) {
        let Range { start, end } = element.range();
        let own = &self.text[start..end];
        if own.ends_with("/>") {
            self.edits.push((end - 2..end, format!(">\n{xml}</{}>", element.tag_name().name())));
        } else if let Some(at) = own.rfind("</") {
            self.edits.push((start + at..start + at, xml.to_owned()));
        }
    }

    fn done(mut self) -> String {
        // From the last to the first, so that places stay where they were.
        self.edits.sort_by_key(|(range, _)| range.start);
        let mut text = self.text.to_owned();
        for (range, xml) in self.edits.into_iter().rev() {
            text.replace_range(range, &xml);
        }
        text
    }
}

/// What libvirt says of a domain that runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Running {
    /// Whether we have started it.
    pub(super) ours: bool,
    /// The aliases of its modules.
    pub(super) modules: Vec<String>,
}

/// Reads the output of `virsh dumpxml`.
///
/// # Errors
/// What is wrong with it.
pub(super) fn running(xml: &str) -> Result<Running, String> {
    let parsed = Document::parse(xml).map_err(|error| error.to_string())?;
    let root = parsed.root_element();
    let aliases = children(root, "devices").filter(|child| child.has_tag_name("memory")).filter_map(|memory| {
        let alias = memory.children().find(|child| child.has_tag_name("alias"))?;
        alias.attribute("name").map(str::to_owned)
    });
    Ok(Running { ours: is_ours(root), modules: aliases.collect() })
}

fn is_ours(root: Node<'_, '_>) -> bool {
    children(root, "metadata").any(|child| child.has_tag_name((OURS, "guest")))
}

/// All children of all children of that name.
fn children<'a, 'i>(root: Node<'a, 'i>, name: &'static str) -> impl Iterator<Item = Node<'a, 'i>> {
    root.children().filter(move |child| child.has_tag_name(name)).flat_map(|child| child.children())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEMPLATE: &str = include_str!("../../testdata/guest.xml");
    const STARTED: &str = include_str!("../../testdata/started.xml");
    const DUMPED: &str = include_str!("../../testdata/dumped.xml");

    fn machine(slices: u32, domain: &str) -> Machine {
        let slice = |index| Slice { emc: 0, index, turn: 1, path: "/pool/a".into(), bytes: 128 << 20 };
        Machine {
            name: "redis-1".to_owned(),
            cores: 2,
            local_bytes: 512 << 20,
            slices: (0..slices).map(slice).collect(),
            arguments: Vec::new(),
            domain: Some(domain.to_owned()),
        }
    }

    fn settings() -> Settings {
        Settings { pool_node: 2, local_nodes: Some("0-1".to_owned()), ..Settings::example() }
    }

    #[test]
    fn a_domain_gets_our_memory_and_keeps_the_rest() {
        assert_eq!(written(&machine(2, TEMPLATE), &settings()).unwrap(), STARTED);
        // What was written is itself a domain to begin with.
        assert_eq!(elements(&written(&machine(2, STARTED), &settings()).unwrap()), elements(STARTED));
    }

    /// All there is, whatever its order.
    fn elements(xml: &str) -> Vec<String> {
        let parsed = Document::parse(xml).unwrap();
        let mut all: Vec<_> = parsed
            .descendants()
            .filter(Node::is_element)
            .map(|node| format!("{} {:?}", node.tag_name().name(), node.attributes().map(|a| (a.name(), a.value())).collect::<Vec<_>>()))
            .collect();
        all.sort();
        all
    }

    #[test]
    fn a_domain_may_have_next_to_nothing() {
        let check = |template: &str, words: &[&str]| {
            let xml = written(&machine(1, template), &Settings { balloon: false, local_nodes: None, ..settings() }).unwrap();
            let parsed = Document::parse(&xml).unwrap();
            for word in words {
                assert!(xml.contains(word), "{word} in {xml}");
            }
            for name in ["name", "metadata", "cpu", "devices"] {
                assert_eq!(parsed.root_element().children().filter(|child| child.has_tag_name(name)).count(), 1, "{name} in {xml}");
            }
            assert!(!xml.contains("numatune"));
        };
        check("<domain/>", &["<memballoon model='none'/>"]);
        check("<domain></domain>", &["<cell id='0' memory='520192'", "<acpi/>"]);
        check("<domain><cpu mode='host-model'/><devices/></domain>", &["<cpu mode='host-model'>", "</cpu>", "</devices>"]);
        check("<domain><cpu><numa><cell/></numa></cpu></domain>", &["cpus='0-1'"]);
        let alone = written(&machine(0, "<domain/>"), &settings()).unwrap();
        assert!(!alone.contains("maxMemory") && !alone.contains("distances"), "{alone}");
    }

    #[test]
    fn what_is_no_domain_is_refused() {
        let check = |domain: Option<&str>, why: &str| {
            let machine = Machine { domain: domain.map(str::to_owned), ..machine(1, "") };
            let told = written(&machine, &settings()).unwrap_err();
            assert!(told.contains(why), "{told}");
        };
        check(None, "names no domain");
        check(Some(""), "not XML");
        check(Some("<domain>"), "not XML");
        check(Some("<network/>"), "<network>");
        check(Some("<!DOCTYPE d [<!ENTITY a 'b'>]><domain>&a;</domain>"), "not XML");
        for at in 0..TEMPLATE.trim_end().len() {
            check(Some(&TEMPLATE[..at]), "not XML");
        }
    }

    #[test]
    fn libvirts_own_words_about_a_domain_are_read() {
        let want = Running { ours: true, modules: vec!["ua-slice0-0".to_owned()] };
        assert_eq!(running(DUMPED).unwrap(), want);
        assert_eq!(running("<domain/>").unwrap(), Running { ours: false, modules: Vec::new() });
        assert_eq!(running("<domain><devices><memory/></devices></domain>").unwrap().modules, Vec::<String>::new());
        assert!(running("error: failed to get domain").is_err());
    }
}
