use super::*;

fn pod(ports: u16, per_server: u16) -> Pod {
    Pod { ports, per_server, per_vm: per_server }
}

/// Devices of each server.
fn degrees(design: &[Vec<u32>], servers: u32) -> Vec<usize> {
    (0..servers).map(|server| design.iter().filter(|device| device.contains(&server)).count()).collect()
}

#[test]
fn every_design_connects_each_server_to_its_devices_and_no_device_to_too_many() {
    for (ports, per_server) in [(4, 8), (4, 4), (3, 8), (2, 5), (8, 8), (16, 3), (4, 1)] {
        for servers in [1, 2, 7, 16, 25, 48, 96, 97] {
            let pod = pod(ports, per_server);
            let design = pod.design(servers, 5);
            assert_eq!(degrees(&design, servers), vec![usize::from(per_server); servers as usize], "{pod:?} {servers}");
            for device in &design {
                assert!(device.len() <= usize::from(ports) && device.is_sorted_by(|a, b| a < b), "{pod:?} {servers}: {device:?}");
            }
            if pod.check(servers).is_ok() {
                assert!(design.iter().all(|device| device.len() == usize::from(ports)), "{pod:?} {servers}: a free port");
            }
            assert_eq!(design, pod.design(servers, 5), "the same seed gives the same design");
        }
    }
    assert_ne!(pod(4, 8).design(96, 1), pod(4, 8).design(96, 2));
}

#[test]
fn a_pod_of_96_servers_shares_no_two_devices() {
    for (servers, devices) in [(96, 192), (64, 128), (32, 64)] {
        let overlap = pod(4, 8).overlap(servers, 1);
        // Each of a server's 8 devices has 3 other servers.
        let want = Overlap { servers, devices, pairs: servers * (servers - 1) / 2, sharing_pairs: servers * 12, sharing_several_pairs: 0 };
        assert_eq!(overlap, want);
    }
}

#[test]
fn difference_families_are_found_where_every_two_servers_share_one_device() {
    // The projective planes of order 2 and 3, and two families of several blocks.
    for (ports, per_server, servers) in [(3, 3, 7), (4, 4, 13), (3, 6, 13), (4, 12, 37)] {
        let overlap = pod(ports, per_server).overlap(servers, 1);
        assert_eq!((overlap.sharing_pairs, overlap.sharing_several_pairs), (overlap.pairs, 0), "{ports} ports: {overlap:?}");
    }
}

#[test]
fn without_a_cyclic_design_pairs_share_about_as_few_devices_as_possible() {
    // There is no cyclic family of 25 servers (a design exists, but none that a shift maps to itself).
    let overlap = pod(4, 8).overlap(25, 1);
    assert!(overlap.devices == 50 && overlap.sharing_pairs * 4 >= overlap.pairs * 3, "{overlap:?}");
    // Six devices per server are no whole number of blocks. Of 96 servers each could meet 18 others.
    let overlap = pod(4, 6).overlap(96, 1);
    assert!(overlap.devices == 144 && overlap.sharing_several_pairs * 50 <= overlap.sharing_pairs, "{overlap:?}");
    // Eight servers with eight devices meet more servers than there are.
    let overlap = pod(4, 8).overlap(8, 1);
    assert!(overlap.devices == 16 && overlap.sharing_pairs * 5 >= overlap.pairs * 4, "{overlap:?}");
}

#[test]
fn impossible_pods_are_refused() {
    assert_eq!(pod(4, 8).check(96), Ok(()));
    assert_eq!(pod(4, 8).check(3), Err(Impossible::FewServers { servers: 3, ports: 4 }));
    let left = pod(4, 7).check(10).unwrap_err();
    assert_eq!(left, Impossible::PortsLeft { servers: 10, per_server: 7, ports: 4 });
    assert!(left.to_string().contains("70 ports"), "{left}");
}
