package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// podSpec is what is looked at of a pod here.
type podSpec struct {
	Containers []struct {
		Command, Args []string
		VolumeMounts  []struct {
			MountPath string `yaml:"mountPath"`
		} `yaml:"volumeMounts"`
	}
	Volumes []struct {
		PersistentVolumeClaim struct {
			ClaimName string `yaml:"claimName"`
		} `yaml:"persistentVolumeClaim"`
	}
	Affinity struct {
		PodAffinity struct {
			Required []struct {
				TopologyKey   string `yaml:"topologyKey"`
				LabelSelector struct {
					MatchLabels map[string]string `yaml:"matchLabels"`
				} `yaml:"labelSelector"`
			} `yaml:"requiredDuringSchedulingIgnoredDuringExecution"`
		} `yaml:"podAffinity"`
	}
}

// readManifest reads one object.
func readManifest(t *testing.T, name string, into any) {
	t.Helper()
	if err := yaml.Unmarshal([]byte(readDeploy(t, name)), into); err != nil {
		t.Fatal(err)
	}
}

// The CronJob's backups do not pile up: there is no more room than for those that are kept, and one.
func TestDeployBackups(t *testing.T) {
	var job struct {
		Spec struct {
			JobTemplate struct {
				Spec struct{ Template struct{ Spec podSpec } }
			} `yaml:"jobTemplate"`
		}
	}
	readManifest(t, "kubernetes/backup.yaml", &job)
	secrets := certificates(t, "idemd/eu", "backups")
	k := &cluster{applied(t, "eu"), ownAddr(t, nil, freeAddr(t)), secrets["idemd/eu"], ""}
	server := k.server(t)
	server.serve(t)
	asked := job.Spec.JobTemplate.Spec.Template.Spec.Containers[0]
	client := &container{mount: map[string]string{asked.VolumeMounts[0].MountPath: secrets["backups"]}, addr: map[string]string{"idemd.idemd.svc:7600": k.addr["0.0.0.0:7600"]}}
	for _, pod := range []string{"idemd-backup-29406015-x", "idemd-backup-29406030-b", "idemd-backup-29406045-k"} {
		client.args = nil
		for _, arg := range asked.Args {
			client.args = append(client.args, strings.ReplaceAll(arg, "$(POD_NAME)", pod))
		}
		client.run(t)
	}
	names, err := os.ReadDir(server.mount["/backups"])
	if err != nil || len(names) != 2 || names[0].Name() != "idemd-backup-29406030-b" {
		t.Errorf("there are %v, %v", names, err)
	}
}

// The volume of the backups can be reached by a pod beside the server's, and that of the store cannot.
func TestDeployBackupsAreReached(t *testing.T) {
	var set struct {
		Spec struct {
			Template struct {
				Metadata struct{ Labels map[string]string }
			}
			VolumeClaimTemplates []struct {
				Metadata struct{ Name string }
				Spec     struct {
					AccessModes []string `yaml:"accessModes"`
				}
			} `yaml:"volumeClaimTemplates"`
		}
	}
	var pod struct{ Spec podSpec }
	readManifest(t, "kubernetes/embedded/statefulset.yaml", &set)
	readManifest(t, "kubernetes/backups.yaml", &pod)
	modes := map[string]string{}
	for _, claim := range set.Spec.VolumeClaimTemplates {
		modes[claim.Metadata.Name+"-idemd-0"] = strings.Join(claim.Spec.AccessModes, " ")
	}
	if claim := pod.Spec.Volumes[0].PersistentVolumeClaim.ClaimName; modes[claim] != "ReadWriteOnce" || modes["data-idemd-0"] != "ReadWriteOncePod" {
		t.Errorf("the pod wants %s; the volumes are %v", claim, modes)
	}
	beside := pod.Spec.Affinity.PodAffinity.Required
	if len(beside) != 1 || beside[0].TopologyKey != "kubernetes.io/hostname" {
		t.Fatalf("it need not be on the same node: %+v", beside)
	}
	for name, value := range beside[0].LabelSelector.MatchLabels {
		if set.Spec.Template.Metadata.Labels[name] != value {
			t.Errorf("it wants to be beside %s=%s, which the server is not", name, value)
		}
	}
}

// A restore for which there is no room leaves the store that was there, and no half copies; what was
// kept goes only if that is said.
func TestDeployRestoreWithoutRoom(t *testing.T) {
	var job struct {
		Spec struct{ Template struct{ Spec podSpec } }
	}
	readManifest(t, "kubernetes/restore.yaml", &job)
	at := &container{mount: map[string]string{"/data": t.TempDir(), "/backups": t.TempDir()}}
	data := at.mount["/data"]
	var command []string
	for _, word := range job.Spec.Template.Spec.Containers[0].Command {
		command = append(command, at.here(word))
	}
	put(t, at.here("/backups/20260131T1504/FORMAT"), "a backup")
	put(t, at.here("/data/store/FORMAT"), "a store")
	full := t.TempDir() // a cp on a disk that is full
	put(t, filepath.Join(full, "cp"), "#!/bin/sh\nmkdir \"$3\"; echo half >\"$3/db\"; exit 1\n")
	if err := os.Chmod(filepath.Join(full, "cp"), 0o700); err != nil {
		t.Fatal(err)
	}
	restore := func(path string, command ...string) error {
		cmd := exec.CommandContext(t.Context(), command[0], command[1:]...)
		cmd.Env = append(os.Environ(), "PATH="+path+string(os.PathListSeparator)+os.Getenv("PATH"))
		out, err := cmd.CombinedOutput()
		t.Logf("%s", out)
		return err
	}
	left := func() (names []string) {
		entries, err := os.ReadDir(data)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			names = append(names, strings.TrimRight(e.Name(), "0123456789"))
		}
		return names
	}
	is := func(want string) {
		t.Helper()
		if got, err := os.ReadFile(filepath.Join(data, "store", "FORMAT")); err != nil || string(got) != want {
			t.Errorf("the store is %q, %v, want %q", got, err, want)
		}
	}
	for range 3 {
		if restore(full, command...) == nil {
			t.Error("a copy that failed is a success")
		}
		if got := left(); !slices.Equal(got, []string{"store"}) {
			t.Errorf("there are %q", got)
		}
		is("a store")
	}
	put(t, filepath.Join(data, "store.new", "db"), "half: the pod was killed")
	if err := restore("", command...); err != nil {
		t.Error(err)
	}
	is("a backup")
	if got := left(); !slices.Equal(got, []string{"store", "store."}) {
		t.Errorf("there are %q", got)
	}
	last := len(command) - 1
	if err := restore("", append(slices.Clone(command[:last]), "remove")...); command[last] != "keep" || err != nil {
		t.Errorf("%q instead of remove: %v", command[last], err)
	}
	is("a backup")
	if got := left(); !slices.Equal(got, []string{"store"}) {
		t.Errorf("there are %q", got)
	}
	missing := slices.Clone(command)
	missing[last-2] += "-no-such"
	missing[last] = "remove"
	if restore("", missing...) == nil {
		t.Error("a backup that is not there is restored")
	}
	is("a backup")
}
