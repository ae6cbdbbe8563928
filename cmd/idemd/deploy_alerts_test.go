package main

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/idemd/idemd/client"
	idemdv1 "github.com/idemd/idemd/proto/idemd/v1"
	"github.com/idemd/idemd/server"
)

// others are metrics that alerts use and idemd has not: Prometheus's own, and node_exporter's.
var others = []string{"up", "node_filesystem_avail_bytes", "node_filesystem_size_bytes"}

// promQL are words of the expressions that are no metrics.
var promQL = []string{"abs", "absent", "by", "histogram_quantile", "increase", "m", "offset", "or", "rate", "sum", "time", "unless"}

// labelValues are those that labels can have.
func labelValues() map[string][]string {
	values := map[string][]string{"step": {"frozen", "sealed"}, "job": {"idemd"}}
	for a := server.AnswerOK; a <= server.AnswerDeadlineExceeded; a++ {
		values["answer"] = append(values["answer"], a.String())
	}
	for number, name := range idemdv1.ErrorReason_name {
		if number != 0 {
			values["answer"] = append(values["answer"], strings.TrimPrefix(name, "ERROR_REASON_"))
		}
	}
	for kind := client.EventGranted; kind.String() != "invalid"; kind++ {
		values["event"] = append(values["event"], kind.String())
	}
	values["operation"] = []string{"claim", "complete"}
	return values
}

// alert is a rule of Prometheus.
type alert struct {
	Name        string `yaml:"alert"`
	Expr        string
	Labels      map[string]string
	Annotations map[string]string
}

// alerts are those of the rules that are deployed.
func alerts(t *testing.T) (all []alert) {
	t.Helper()
	var file struct{ Groups []struct{ Rules []alert } }
	if err := yaml.Unmarshal([]byte(readDeploy(t, "prometheus/alerts.yaml")), &file); err != nil {
		t.Fatal(err)
	}
	for _, group := range file.Groups {
		all = append(all, group.Rules...)
	}
	return all
}

// TestDeployAlerts checks that each alert is about metrics that there are, says what to do, and where that is
// said at length.
func TestDeployAlerts(t *testing.T) {
	metrics, values, sections := knownMetrics(t), labelValues(), map[string][]string{}
	for _, p := range readmePages(t) {
		sections[p.name] = p.anchors()
	}
	seen := map[string]bool{}
	for _, a := range alerts(t) {
		if seen[a.Name] || a.Name == "" {
			t.Errorf("%q twice, or without a name", a.Name)
		}
		seen[a.Name] = true
		a.checkExpr(t, metrics, values)
		a.checkText(t, sections)
	}
	if len(seen) == 0 {
		t.Error("no alerts")
	}
}

var reconcileMetric = regexp.MustCompile("`(idemd_reconcile_[a-z_]+)`")

// knownMetrics are those that the pages name, and others.
func knownMetrics(t *testing.T) []string {
	t.Helper()
	known := append(readmeColumn(t, "| name | labels | |", "| metric | labels | |", "| metric | labels | what it counts |"), others...)
	for _, match := range reconcileMetric.FindAllStringSubmatch(readmeText(t), -1) {
		known = append(known, match[1])
	}
	return known
}

var labelMatch = regexp.MustCompile(`(\w+)=~?"([^"]*)"`)

// checkExpr checks that there are the metrics of the rule, with the values of labels that it asks for. A mount point is
// whatever a machine has. IdemdDiskFills sees the usual ones of a machine that idemd runs on, and no volume of Kubernetes:
// those are mounted below /var/lib/kubelet, and the kubelet tells of them (kubelet_volume_stats_available_bytes).
func (a *alert) checkExpr(t *testing.T, metrics []string, values map[string][]string) {
	t.Helper()
	for _, name := range metricsIn(a.Expr) {
		if !slices.Contains(metrics, name) {
			t.Errorf("%s: there is no metric %s", a.Name, name)
		}
	}
	for _, match := range labelMatch.FindAllStringSubmatch(a.Expr, -1) {
		for value := range strings.SplitSeq(match[2], "|") {
			if match[1] != "mountpoint" && !slices.Contains(values[match[1]], value) {
				t.Errorf("%s: %s is never %q", a.Name, match[1], value)
			}
		}
	}
}

// checkText checks what the rule tells whoever is called.
func (a *alert) checkText(t *testing.T, sections map[string][]string) {
	t.Helper()
	page, section, _ := strings.Cut(a.Annotations["page"], "#")
	if !slices.Contains(sections[page], section) {
		t.Errorf("%s: there is no section %q", a.Name, a.Annotations["page"])
	}
	if _, do, ok := strings.Cut(a.Annotations["summary"], ": "); !ok || do == "" {
		t.Errorf("%s: the summary does not say what is wrong, and behind a colon what to do: %q", a.Name, a.Annotations["summary"])
	}
	if !slices.Contains([]string{"page", "ticket"}, a.Labels["severity"]) {
		t.Errorf("%s: severity %q", a.Name, a.Labels["severity"])
	}
}

// What of an expression is not metrics: what is asked of labels, ranges, and the labels that are grouped by.
var notMetrics = regexp.MustCompile(`\{[^}]*\}|\[[^]]*\]|\b(by|without|on) \([^)]*\)`)

var promWord = regexp.MustCompile(`[a-z_:][a-z0-9_:]*`)

// metricsIn are the metrics of an expression; a histogram's buckets are the histogram.
func metricsIn(expr string) (names []string) {
	for _, word := range promWord.FindAllString(notMetrics.ReplaceAllString(expr, " "), -1) {
		if !slices.Contains(promQL, word) {
			names = append(names, strings.TrimSuffix(word, "_bucket"))
		}
	}
	return names
}
