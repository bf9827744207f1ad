//! Domain XML: the operator's domain with memory, NUMA cells and modules replaced, and the XML of a running domain.

use std::fmt::Write as _;
use std::ops::Range;

use manager::api::Slice;
use roxmltree::{Document, Node};
use units::Bytes;

use super::settings::Settings;
use crate::driver::Machine;

/// Namespace of the metadata element that marks a domain of this driver.
const NAMESPACE: &str = "urn:thermocline:guest";
/// How often the guest's balloon driver reports, in seconds.
const BALLOON_SECONDS: u32 = 2;
/// Local memory of the pool cell: libvirt creates memory for every cell, and QEMU accepts no memory of size zero.
const POOL_CELL: Bytes = Bytes(4 << 20);

/// Alias of a slice's module. libvirt requires the prefix `ua-` for aliases of users.
pub(super) fn alias(slice: &Slice) -> String {
    format!("ua-slice{}-{}", slice.emc, slice.index)
}

/// The domain to create.
///
/// Of the operator's domain `text`, everything that sets size and placement of memory is replaced: name, memory,
/// processors, cells, modules and balloon. Memory is in memfds, whose touched pages the kernel reports.
///
/// # Errors
/// What is wrong with the operator's domain.
pub(super) fn build(text: &str, machine: &Machine, settings: &Settings) -> Result<String, String> {
    let parsed = Document::parse(text).map_err(|error| format!("the domain is not XML: {error}"))?;
    let root = parsed.root_element();
    if !root.has_tag_name("domain") {
        return Err(format!("the domain is a <{}>; give a <domain>", root.tag_name().name()));
    }
    let mut edits = Edits { text, edits: Vec::new() };
    for name in ["name", "uuid", "memory", "currentMemory", "maxMemory", "vcpu", "numatune", "memoryBacking"] {
        edits.remove(root, name);
    }
    // A domain made from the XML of a running guest has the mark already.
    let mark = if is_ours(root) { String::new() } else { format!("<thermocline:guest xmlns:thermocline='{NAMESPACE}'/>\n") };
    let mut more = top(machine, settings);
    more += &edits.append_to(root, "metadata", &mark, &[]);
    // Guests find modules by ACPI.
    more += &edits.append_to(root, "features", "<acpi/>\n", &["acpi"]);
    more += &edits.append_to(root, "cpu", &cells(machine, settings), &["numa"]);
    more += &edits.append_to(root, "devices", &devices(machine, settings), &["memory", "memballoon"]);
    edits.append(root, &more);
    Ok(edits.apply())
}

/// Elements directly below `<domain>`.
fn top(machine: &Machine, settings: &Settings) -> String {
    let Machine { name, cores, slices, .. } = machine;
    let memory = (machine.local_bytes + machine.pool_bytes()).0 >> 10;
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

/// One cell with all cores and the local memory and, with slices, a second one without cores and [`POOL_CELL`].
fn cells(machine: &Machine, settings: &Settings) -> String {
    let last = machine.cores.saturating_sub(1);
    let cell = |id: u8, size: Bytes| format!("<cell id='{id}' memory='{}' unit='KiB'", size.0 >> 10);
    if machine.slices.is_empty() {
        return format!("<numa>{} cpus='0-{last}'/></numa>\n", cell(0, machine.local_bytes));
    }
    let (first, second) = (cell(0, machine.local_bytes.saturating_sub(POOL_CELL)), cell(1, POOL_CELL));
    let distances = |own: u8, other: u8| {
        let far = settings.distance;
        format!("<distances><sibling id='{own}' value='10'/><sibling id='{other}' value='{far}'/></distances>")
    };
    let (near, far) = (distances(0, 1), distances(1, 0));
    format!("<numa>\n{first} cpus='0-{last}'>{near}</cell>\n{second}>{far}</cell>\n</numa>\n")
}

/// One module of the pool's node per slice, and the balloon.
fn devices(machine: &Machine, settings: &Settings) -> String {
    let mut xml = String::new();
    for slice in &machine.slices {
        let (alias, size, node) = (alias(slice), slice.bytes.0 >> 10, settings.pool_node);
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

/// Changes to a text, applied together.
struct Edits<'a> {
    text: &'a str,
    edits: Vec<(Range<usize>, String)>,
}

impl Edits<'_> {
    /// Removes all children of that name.
    fn remove(&mut self, parent: Node<'_, '_>, name: &str) {
        for child in parent.children().filter(|child| child.has_tag_name(name)) {
            self.edits.push((child.range(), String::new()));
        }
    }

    /// Appends `xml` to the child `name`, and removes the child's own children named in `replaced`. If there is no such
    /// child, returns one to append to the parent.
    fn append_to(&mut self, parent: Node<'_, '_>, name: &str, xml: &str, replaced: &[&str]) -> String {
        let Some(child) = parent.children().find(|child| child.has_tag_name(name)) else {
            return format!("<{name}>\n{xml}</{name}>\n");
        };
        for name in replaced {
            self.remove(child, name);
        }
        self.append(child, xml);
        String::new()
    }

    /// Appends `xml` to an element. At most once per element.
    fn append(&mut self, element: Node<'_, '_>, xml: &str) {
        let Range { start, end } = element.range();
        let own = &self.text[start..end];
        if own.ends_with("/>") {
            self.edits.push((end - 2..end, format!(">\n{xml}</{}>", element.tag_name().name())));
        } else if let Some(at) = own.rfind("</") {
            self.edits.push((start + at..start + at, xml.to_owned()));
        }
    }

    fn apply(mut self) -> String {
        // From last to first, so that the offsets of the others stay valid.
        self.edits.sort_by_key(|(range, _)| range.start);
        let mut text = self.text.to_owned();
        for (range, xml) in self.edits.into_iter().rev() {
            text.replace_range(range, &xml);
        }
        text
    }
}

/// A running domain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Running {
    /// Whether this driver created it.
    pub(super) ours: bool,
    /// Aliases of its memory modules.
    pub(super) modules: Vec<String>,
}

/// Parses the output of `virsh dumpxml`.
///
/// # Errors
/// Why it is not XML.
pub(super) fn parse_running(xml: &str) -> Result<Running, String> {
    let parsed = Document::parse(xml).map_err(|error| error.to_string())?;
    let root = parsed.root_element();
    let aliases = children(root, "devices").filter(|child| child.has_tag_name("memory")).filter_map(|memory| {
        let alias = memory.children().find(|child| child.has_tag_name("alias"))?;
        alias.attribute("name").map(str::to_owned)
    });
    Ok(Running { ours: is_ours(root), modules: aliases.collect() })
}

fn is_ours(root: Node<'_, '_>) -> bool {
    children(root, "metadata").any(|child| child.has_tag_name((NAMESPACE, "guest")))
}

/// The grandchildren below all children of that name.
fn children<'a, 'i>(root: Node<'a, 'i>, name: &'static str) -> impl Iterator<Item = Node<'a, 'i>> {
    root.children().filter(move |child| child.has_tag_name(name)).flat_map(|child| child.children())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEMPLATE: &str = include_str!("../../../testdata/guest.xml");
    const STARTED: &str = include_str!("../../../testdata/started.xml");
    const DUMPED: &str = include_str!("../../../testdata/dumped.xml");

    fn machine(slices: u32) -> Machine {
        let slice = |index| Slice { emc: 0, index, generation: 1, path: "/pool/a".into(), offset: None, bytes: Bytes(128 << 20) };
        Machine {
            name: "redis-1".to_owned(),
            cores: 2,
            local_bytes: Bytes(512 << 20),
            slices: (0..slices).map(slice).collect(),
            description: None,
        }
    }

    fn settings() -> Settings {
        Settings { pool_node: 2, local_nodes: Some("0-1".to_owned()), ..Settings::example() }
    }

    #[test]
    fn memory_is_replaced_and_the_rest_of_the_domain_is_kept() {
        assert_eq!(build(TEMPLATE, &machine(2), &settings()).unwrap(), STARTED);
        // The result can itself be the template.
        assert_eq!(elements(&build(STARTED, &machine(2), &settings()).unwrap()), elements(STARTED));
    }

    /// All elements with their attributes, in any order.
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
    fn a_domain_may_be_almost_empty() {
        let check = |template: &str, words: &[&str]| {
            let xml = build(template, &machine(1), &Settings { balloon: false, local_nodes: None, ..settings() }).unwrap();
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
        let alone = build("<domain/>", &machine(0), &settings()).unwrap();
        assert!(!alone.contains("maxMemory") && !alone.contains("distances"), "{alone}");
    }

    #[test]
    fn other_xml_is_refused() {
        let check = |domain: &str, why: &str| {
            let error = build(domain, &machine(1), &settings()).unwrap_err();
            assert!(error.contains(why), "{error}");
        };
        check("", "not XML");
        check("<domain>", "not XML");
        check("<network/>", "<network>");
        check("<!DOCTYPE d [<!ENTITY a 'b'>]><domain>&a;</domain>", "not XML");
        for at in 0..TEMPLATE.trim_end().len() {
            check(&TEMPLATE[..at], "not XML");
        }
    }

    #[test]
    fn running_domains_are_parsed() {
        let expected = Running { ours: true, modules: vec!["ua-slice0-0".to_owned()] };
        assert_eq!(parse_running(DUMPED).unwrap(), expected);
        assert_eq!(parse_running("<domain/>").unwrap(), Running { ours: false, modules: Vec::new() });
        assert_eq!(parse_running("<domain><devices><memory/></devices></domain>").unwrap().modules, Vec::<String>::new());
        assert!(parse_running("error: failed to get domain").is_err());
    }
}
