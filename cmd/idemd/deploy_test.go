package main

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
	"go.yaml.in/yaml/v3"

	"github.com/idemd/idemd/region"
	"github.com/idemd/idemd/server/identity"
)

// deployed is a command line in deploy/, with its environment.
type deployed struct {
	name string
	args []string
	env  map[string]string
}

// TestDeployCommands parses the command lines of deploy/ as idemd would.
func TestDeployCommands(t *testing.T) {
	commands := append(composed(t), inCluster(t)...)
	if len(commands) != 8 {
		t.Errorf("%d command lines", len(commands))
	}
	for _, c := range commands {
		t.Run(c.name, func(t *testing.T) {
			for name, value := range c.env {
				t.Setenv(name, value)
			}
			parsed, err := newParser(io.Discard, io.Discard).Parse(c.args)
			if err != nil {
				t.Fatalf("%q: %v", c.args, err)
			}
			for name := range c.env {
				if !slices.ContainsFunc(parsed.Selected().Flags, func(f *kong.Flag) bool { return slices.Contains(f.Envs, name) }) {
					t.Errorf("%s is no variable of idemd %s", name, parsed.Command())
				}
			}
		})
	}
}

// composed are the services of the compose file.
func composed(t *testing.T) []deployed {
	t.Helper()
	var file struct {
		Services map[string]struct {
			Command     []string
			Environment map[string]string
		}
	}
	text, err := os.ReadFile("../../deploy/compose/compose.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	var commands []deployed
	for name, service := range file.Services {
		args := service.Command
		switch name { // those for people to call
		case "caller":
			args = []string{"claim", "--id", "order-1001"}
		case "operator":
			args = []string{"region", "list"}
		}
		commands = append(commands, deployed{"compose " + name, args, service.Environment})
	}
	return commands
}

// inCluster are the containers of the Kubernetes manifests.
func inCluster(t *testing.T) []deployed {
	t.Helper()
	var commands []deployed
	for _, name := range []string{"base/statefulset.yaml", "database/deployment.yaml"} {
		var object struct {
			Spec struct {
				Template struct {
					Spec struct {
						Containers []struct {
							Args []string
							Env  []struct{ Name, Value string }
						}
					}
				}
			}
		}
		text, err := os.ReadFile("../../deploy/kubernetes/" + name)
		if err == nil {
			err = yaml.Unmarshal(text, &object)
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, container := range object.Spec.Template.Spec.Containers {
			c := deployed{"kubernetes " + name, container.Args, map[string]string{}}
			for _, variable := range container.Env {
				c.env[variable.Name] = variable.Value
			}
			commands = append(commands, c)
		}
	}
	return commands
}

// TestDeployManifests builds the manifests as kubectl would before it applies them.
func TestDeployManifests(t *testing.T) {
	if _, err := exec.LookPath("kubectl"); err != nil {
		t.Skip("NOT RUN: there is no kubectl, so nothing has built the manifests of deploy/kubernetes")
	}
	for dir, want := range map[string]string{"eu": "value: eu", "us": "value: us", "ap": "value: ap", "database": "kind: PodDisruptionBudget"} {
		built, err := exec.CommandContext(t.Context(), "kubectl", "kustomize", filepath.Join("../../deploy/kubernetes", dir)).CombinedOutput()
		if err != nil || !strings.Contains(string(built), want) {
			t.Errorf("%s: %v\n%s", dir, err, built)
		}
	}
}

// TestDeployFiles reads the topology and policy files of deploy/.
func TestDeployFiles(t *testing.T) {
	for _, name := range []string{"compose/topology.yaml", "kubernetes/base/topology.yaml"} {
		for _, own := range []string{"eu", "us", "ap"} {
			if _, err := region.LoadTopology("../../deploy/"+name, own); err != nil {
				t.Errorf("%s in %s: %v", name, own, err)
			}
		}
	}
	for _, name := range []string{"kubernetes/base/policy.yaml", "kubernetes/database/policy.yaml"} {
		text, err := os.ReadFile("../../deploy/" + name)
		if err == nil {
			_, err = identity.ParsePolicy(text)
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
